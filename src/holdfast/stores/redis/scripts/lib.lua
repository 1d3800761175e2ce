-- What every script begins with.
-- KEYS[1]: the prefix of all keys, with its hash tag. ARGV[1]: the epoch that the caller knows, '' for any.
-- ARGV[2], ARGV[3]: wall and lease time, '' for the clock of the server.
-- All other keys are made from the prefix: its tag keeps them in one slot. Names hold no NUL, so that NUL separates them.

local P, Z, call = KEYS[1], '\0', redis.call

local epoch = call('HGET', P .. 'meta', 'epoch')
if not epoch then return redis.error_reply('HOLDFASTLOST emptied') end
if ARGV[1] ~= '' and epoch ~= ARGV[1] then return redis.error_reply('HOLDFASTLOST replaced') end

-- A key may have a value of another program. It must stop nobody but the jobs that need it: to those who read an index
-- it is empty, to those who read a row it is a row that cannot be read, and writes leave it out and name it under `bad`.
local EMPTY = {GET = false, HGET = false, ZSCORE = false, ZCARD = 0, SCARD = 0, LLEN = 0, SISMEMBER = 0}
EMPTY.ZRANGE, EMPTY.LRANGE, EMPTY.SMEMBERS = {}, {}, {}

local function words_of(problem)
  return type(problem) == 'table' and tostring(problem.err) or tostring(problem)
end

local function is_foreign(problem) return string.find(words_of(problem), 'WRONGTYPE', 1, true) ~= nil end

local function ask(name, ...)
  local found = redis.pcall(name, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if not is_foreign(found) then error(found) end
  return EMPTY[name]
end

local function text_of(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'table' and found.err or found
end

-- Count what is wrong, by its words; a thousand of them are enough to look at.
local function complain(words)
  local number = redis.pcall('HLEN', P .. 'bad')
  if type(number) == 'table' then return end -- `check` names a key of the wrong type
  if number < 1000 or redis.call('HEXISTS', P .. 'bad', words) == 1 then
    redis.call('HINCRBY', P .. 'bad', words, 1)
  end
end

local function write(name, key, ...)
  local ok, problem = pcall(call, name, key, ...)
  if ok then return end
  if not is_foreign(problem) then error(problem, 0) end
  complain(name .. ' ' .. string.sub(key, #P + 1) .. ': ' .. words_of(problem))
end

local function now()
  if ARGV[2] ~= '' then return tonumber(ARGV[2]), tonumber(ARGV[3]) end
  local time = call('TIME')
  local at = tonumber(time[1]) + tonumber(time[2]) / 1000000
  return at, at
end

-- Lua's own conversion of a number to text keeps 14 digits.
local function exact(number) return string.format('%.17g', number) end
local function whole(number) return string.format('%.0f', number) end

-- Where the places of the row are that scripts read; `rows.py` has the same list.
local SEQ, STATE, QUEUE, TASK, PRIORITY, RUN_AT, GROUP, FENCE, ATTEMPT, CLAIM_ID, WORKER, CLAIMED_AT, STARTED, LEASE_S,
  WILLING, EXPIRES_AT, BATCH = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17

-- A row that cannot be read is no row.
local function read(text)
  if not text then return nil end
  local ok, row = pcall(cmsgpack.unpack, text)
  return ok and type(row) == 'table' and row[BATCH] ~= nil and row or nil
end

-- A lane has the ready jobs of one queue, priority, group and task that a claim may (a) or may not (x) take ahead.
local function lane_of(row)
  return row[QUEUE], whole(row[PRIORITY]), row[GROUP] or '', row[TASK], row[WILLING] and 'a' or 'x'
end

local function lane_key(queue, priority, group, task, willing)
  return P .. 'l:' .. table.concat({queue, priority, group, task, willing}, Z)
end

local function front_key(queue, priority, group) return P .. 'f:' .. queue .. Z .. priority .. Z .. group end

local function member_of(seq, id) return string.format('%016.0f', seq) .. id end

-- Bring the indexes above a lane up to date with its first job.
local function mend(queue, priority, group, task, willing)
  local head = ask('ZRANGE', lane_key(queue, priority, group, task, willing), 0, 0, 'WITHSCORES')
  local front, name = front_key(queue, priority, group), task .. Z .. willing
  local all, groups = P .. 'd:' .. queue, P .. 'g:' .. queue .. Z .. priority
  local path = table.concat({priority, group, task, willing}, Z)
  if head[1] then
    write('ZADD', front, head[2], name)
    write('ZADD', all, head[2], path)
    if group ~= '' then write('ZADD', groups, 0, group) end
    write('ZADD', P .. 'q:' .. queue, -tonumber(priority), priority)
    return
  end
  write('ZREM', front, name)
  write('ZREM', all, path)
  if call('EXISTS', front) == 1 then return end
  if group ~= '' then write('ZREM', groups, group) end
  if call('EXISTS', groups, front_key(queue, priority, '')) == 0 then write('ZREM', P .. 'q:' .. queue, priority) end
end
