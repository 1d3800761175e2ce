-- How scripts write; included after lib.lua. Commands are carried out one by one. If one fails in the middle, what is
-- left is kept under `torn`, and the next script that writes finishes it first. So each command is carried out once.
-- A command is {name, key without prefix, argument, …}, or one of `act`.

local act, dirty, came = {}, {}, false
local left, at -- the commands that are being carried out, and which of them

local function touch(row)
  local queue, priority, group, task, willing = lane_of(row)
  local key = lane_key(queue, priority, group, task, willing)
  dirty[key] = {queue, priority, group, task, willing}
  return key
end

-- {new, id, row, body, sets, number or nothing}: store a new job. The sets are ordered by arrival. A copy gives the
-- number of arrival; otherwise it is made here, and kept for a second try.
function act.new(each)
  local id, row, body, sets = each[2], each[3], each[4], each[5]
  each[6] = each[6] or call('HINCRBY', P .. 'meta', 'seq', 1)
  row[SEQ] = each[6]
  write('SET', P .. 'b:' .. id, body)
  for _, key in ipairs(sets) do write('ZADD', P .. key, row[SEQ], id) end
  write('SADD', P .. 'pairs', row[QUEUE] .. Z .. row[TASK])
  if row[GROUP] then write('SADD', P .. 'grouped', row[QUEUE]) end
  write('SET', P .. 'j:' .. id, cmsgpack.pack(row))
  if row[STATE] ~= 'ready' then return end -- it was ended by the call that stores it
  write('ZADD', touch(row), row[RUN_AT], member_of(row[SEQ], id))
  came = true
end

-- {enter or leave, id, row}: put a job into its lane, or take it out.
function act.enter(each)
  local id, row = each[2], each[3]
  write('SADD', P .. 'pairs', row[QUEUE] .. Z .. row[TASK])
  if row[GROUP] then write('SADD', P .. 'grouped', row[QUEUE]) end
  if row[EXPIRES_AT] then write('ZREM', P .. 'passed', id) end
  write('ZADD', touch(row), row[RUN_AT], member_of(row[SEQ], id))
  came = true
end
function act.leave(each)
  local id, row = each[2], each[3]
  if row[EXPIRES_AT] then write('ZREM', P .. 'passed', id) end
  write('ZREM', touch(row), member_of(row[SEQ], id))
end

-- {event, kind, job, line, by a person or not}: write a line of the journal. What counts twice comes last.
function act.event(each)
  local kind, id, line, by_person = each[2], each[3], each[4], each[5]
  each[6] = each[6] or call('HINCRBY', P .. 'meta', 'event', 1)
  local number, name = each[6], string.format('%016.0f', each[6])
  write('ZADD', P .. 'v:' .. kind, number, name .. line)
  write('SADD', P .. 'kinds', kind)
  if by_person then write('ZADD', P .. 'acts', number, name .. kind) end
  write('RPUSH', P .. 'h:' .. id, name .. kind)
end

-- {error, slot, oldest slot that is kept, name, facts, instant, job}: count an attempt that ended with an error.
function act.error(each)
  local slot, oldest, name, facts, happened_at, job = unpack(each, 2)
  for _, old in ipairs(ask('ZRANGE', P .. 'slots', '-inf', '(' .. whole(oldest), 'BYSCORE', 'LIMIT', 0, 100)) do
    write('UNLINK', P .. 'er:' .. old)
    write('ZREM', P .. 'slots', old)
  end
  local key = P .. 'er:' .. whole(slot)
  write('ZADD', P .. 'slots', slot, whole(slot))
  write('HSETNX', key, 'f' .. name, facts)
  local last = ask('HGET', key, 'l' .. name)
  local last_at = last and tonumber(string.match(last, '^%S+'))
  if not last or happened_at > last_at or (happened_at == last_at and job > string.match(last, ' (.*)$')) then
    write('HSET', key, 'l' .. name, exact(happened_at) .. ' ' .. job)
  end
  write('HINCRBY', key, 'n' .. name, 1)
end

local function carry_out(todo)
  left = todo
  for place, each in ipairs(todo) do
    at = place
    local own = act[each[1]]
    if own then own(each) else write(each[1], P .. each[2], unpack(each, 3)) end
  end
  left = nil
end

local function mend_lanes()
  for _, lane in pairs(dirty) do mend(unpack(lane)) end
end

-- Run a function that writes. `follows` returns the commands that must come in any case, if something was written.
local function writing(body, follows)
  local ok, answer = pcall(body)
  if ok then return answer end
  local rest, lanes = {}, {}
  for place = at or 1, left and #left or 0 do rest[#rest + 1] = left[place] end
  for _, each in ipairs(follows and follows() or {}) do rest[#rest + 1] = each end
  for _, lane in pairs(dirty) do lanes[#lanes + 1] = lane end
  redis.call('SET', P .. 'torn', cmsgpack.pack({rest, lanes}))
  return redis.error_reply('HOLDFASTTORN ' .. words_of(answer))
end

-- Finish what an earlier script has left. What fails again is named under `bad`, and left out.
local function finish()
  local torn = redis.call('GET', P .. 'torn')
  if not torn then return end
  local function try(what, ...)
    local ok, problem = pcall(...)
    if not ok then complain(what .. ': ' .. words_of(problem)) end
  end
  local rest, lanes = unpack(cmsgpack.unpack(torn))
  for _, lane in ipairs(lanes) do dirty[lane_key(unpack(lane))] = lane end
  for _, each in ipairs(rest) do try(each[1] .. ' ' .. each[2], carry_out, {each}) end
  for key, lane in pairs(dirty) do try(key, mend, unpack(lane)) end
  redis.call('DEL', P .. 'torn')
  left, at, dirty, came = nil, nil, {}, false
end
