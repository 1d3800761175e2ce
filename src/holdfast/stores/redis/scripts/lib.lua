-- What every script begins with.
-- KEYS[1]: the prefix of all keys, with its hash tag. ARGV[1]: the epoch that the caller knows, '' for any.
-- ARGV[2], ARGV[3]: wall and lease time, '' for the clock of the server.
-- All other keys are made from the prefix: its tag keeps them in one slot. Names hold no NUL, so that NUL separates them.

local P, Z, call = KEYS[1], '\0', redis.call

local epoch = call('HGET', P .. 'meta', 'epoch')
if not epoch then return redis.error_reply('HOLDFASTLOST emptied') end
if ARGV[1] ~= '' and epoch ~= ARGV[1] then return redis.error_reply('HOLDFASTLOST replaced') end

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
  local head = call('ZRANGE', lane_key(queue, priority, group, task, willing), 0, 0, 'WITHSCORES')
  local front, name = front_key(queue, priority, group), task .. Z .. willing
  local all, groups = P .. 'd:' .. queue, P .. 'g:' .. queue .. Z .. priority
  local path = table.concat({priority, group, task, willing}, Z)
  if head[1] then
    call('ZADD', front, head[2], name)
    call('ZADD', all, head[2], path)
    if group ~= '' then call('ZADD', groups, 0, group) end
    call('ZADD', P .. 'q:' .. queue, -tonumber(priority), priority)
    return
  end
  call('ZREM', front, name)
  call('ZREM', all, path)
  if call('EXISTS', front) == 1 then return end
  if group ~= '' then call('ZREM', groups, group) end
  if call('EXISTS', groups, front_key(queue, priority, '')) == 0 then call('ZREM', P .. 'q:' .. queue, priority) end
end
