#!lua flags=allow-oom
-- Commit what a verb has decided, if what it looked at is still the same.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4]: what was looked at, ARGV[5]: what is to be done, both lists of
-- lists in MessagePack; their keys lack the prefix.
-- Returns {1, ver}, or {0, n} if the n-th thing that was looked at is another by now: then nothing was done.

local seen, todo = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])

local look = {
  row = function(key) return call('GET', P .. key) end,
  field = function(key, field) return call('HGET', P .. key, field) end,
  score = function(key, member)
    local score = call('ZSCORE', P .. key, member)
    return score and tonumber(score)
  end,
  member = function(key, member) return call('SISMEMBER', P .. key, member) end,
  length = function(key) return call('LLEN', P .. key) end,
  size = function(key) return call('ZCARD', P .. key) end,
}
for number, each in ipairs(seen) do
  if look[each[1]](each[2], each[3]) ~= each[4] then return {0, number} end
end

local dirty, came = {}, false
local function touch(row)
  local queue, priority, group, task, willing = lane_of(row)
  local key = lane_key(queue, priority, group, task, willing)
  dirty[key] = {queue, priority, group, task, willing}
  return key
end

local act = {}

-- id, row, body, sets: store a new job. The sets are ordered by arrival.
function act.new(id, row, body, sets)
  row[SEQ] = call('HINCRBY', P .. 'meta', 'seq', 1)
  call('SET', P .. 'b:' .. id, body)
  for _, key in ipairs(sets) do call('ZADD', P .. key, row[SEQ], id) end
  call('SADD', P .. 'pairs', row[QUEUE] .. Z .. row[TASK])
  if row[GROUP] then call('SADD', P .. 'grouped', row[QUEUE]) end
  call('SET', P .. 'j:' .. id, cmsgpack.pack(row))
  if row[STATE] ~= 'ready' then return end -- it was ended by the call that stores it
  call('ZADD', touch(row), row[RUN_AT], member_of(row[SEQ], id))
  came = true
end

-- id, row: put a job into its lane, or take it out.
function act.enter(id, row)
  call('SADD', P .. 'pairs', row[QUEUE] .. Z .. row[TASK])
  if row[GROUP] then call('SADD', P .. 'grouped', row[QUEUE]) end
  call('ZADD', touch(row), row[RUN_AT], member_of(row[SEQ], id))
  came = true
end
function act.leave(id, row) call('ZREM', touch(row), member_of(row[SEQ], id)) end

-- kind, job, line, by a person or not: write a line of the journal.
function act.event(kind, id, line, by_person)
  local number = call('HINCRBY', P .. 'meta', 'event', 1)
  local name = string.format('%016.0f', number)
  call('ZADD', P .. 'v:' .. kind, number, name .. line)
  call('SADD', P .. 'kinds', kind)
  call('RPUSH', P .. 'h:' .. id, name .. kind)
  if by_person then call('ZADD', P .. 'acts', number, name .. kind) end
end

-- slot, oldest slot that is kept, name, facts, instant, job: count an attempt that ended with an error.
function act.error(slot, oldest, name, facts, at, job)
  for _, old in ipairs(call('ZRANGE', P .. 'slots', '-inf', '(' .. whole(oldest), 'BYSCORE', 'LIMIT', 0, 100)) do
    call('UNLINK', P .. 'er:' .. old)
    call('ZREM', P .. 'slots', old)
  end
  local key = P .. 'er:' .. whole(slot)
  call('ZADD', P .. 'slots', slot, whole(slot))
  call('HINCRBY', key, 'n' .. name, 1)
  call('HSETNX', key, 'f' .. name, facts)
  local last = call('HGET', key, 'l' .. name)
  local last_at = last and tonumber(string.match(last, '^%S+'))
  if not last or at > last_at or (at == last_at and job > string.match(last, ' (.*)$')) then
    call('HSET', key, 'l' .. name, exact(at) .. ' ' .. job)
  end
end

for _, each in ipairs(todo) do
  local own = act[each[1]]
  if own then
    own(unpack(each, 2))
  else
    call(each[1], P .. each[2], unpack(each, 3))
  end
end
for _, lane in pairs(dirty) do mend(unpack(lane)) end
if came then call('SPUBLISH', P .. 'hint', '') end
return {1, call('HINCRBY', P .. 'meta', 'ver', 1)}
