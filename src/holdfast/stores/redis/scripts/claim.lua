#!lua flags=allow-oom
-- Give a worker leases on due jobs.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4]: the worker. ARGV[5]: the claim id.
-- ARGV[6]: {queues, tasks, limit, ahead, part} in MessagePack; a large claim comes in parts.
-- Returns {'gone'}, or {'held' or 'taken', 1 if all groups were looked at, taken not ahead, id, row, body, lease, …}.

local worker, claim_id = ARGV[4], ARGV[5]
local queues, tasks, limit, ahead, part = unpack(cmsgpack.unpack(ARGV[6]))
finish()
if call('SISMEMBER', P .. 'alive', worker) == 0 then return {'gone'} end
call('ZCARD', P .. 'leases') -- if it has a value of another program, nothing may start

local SKIPPED_MAX = 200 -- entries that one script passes by: of expired jobs, or unlike the rows of their jobs
local answer = {'taken', 1, 0}
local function give_back(id, text, body, ends)
  answer[#answer + 1] = id
  answer[#answer + 1] = text
  answer[#answer + 1] = body
  answer[#answer + 1] = ends or call('ZSCORE', P .. 'leases', id)
end

-- The last claims of this worker that took something, and up to which part.
local claims, repeated = 'claims:' .. worker, false
for _, each in ipairs(ask('LRANGE', P .. claims, 0, -1)) do
  repeated = repeated or (string.sub(each, 9) == claim_id and tonumber(string.sub(each, 1, 8)) >= part)
end
if repeated then
  local held = {}
  for _, id in ipairs(ask('SMEMBERS', P .. 'held:' .. worker)) do
    local text = text_of(P .. 'j:' .. id)
    local row = read(text)
    if row and row[CLAIM_ID] == claim_id then held[#held + 1] = {row[SEQ], id, text} end
  end
  table.sort(held, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(held) do give_back(each[2], each[3], ask('GET', P .. 'b:' .. each[2])) end
  answer[1] = 'held'
  if #held > 0 then
    call('HINCRBY', P .. 'meta', 'ver', 0) -- a write: WAIT waits for the last one of its own connection only
    return answer
  end
  answer[1] = 'taken'
end

local wall, lease = now()
local known = {}
for _, task in ipairs(tasks) do known[task] = true end

-- What is set for the queues: {paused, until, limit, group limit, step of the rate, burst, paused groups}.
local settings, open, saw_all, stale, passed = {}, {}, true, {}, {}
for _, name in ipairs(queues) do
  local set = call('HGET', P .. 'set', name)
  set = set and cmsgpack.unpack(set) or {false, false, false, false, false, 1, {}}
  settings[name] = set
  set.turns = set[3] or set[4] or set[5] or (set[1] and set[2]) or next(set[7])
    or ask('SISMEMBER', P .. 'grouped', name) == 1
  if not (set[1] and (not set[2] or wall < set[2])) then open[#open + 1] = name end
end

-- Yield the due jobs of a lane in their order: {run_at, member, id, row, body}.
local function jobs_of(lane, chunk)
  local offset, page, place = 0, {}, 1
  return function()
    while true do
      if place > #page then
        page, place = ask('ZRANGE', lane, '-inf', exact(wall), 'BYSCORE', 'LIMIT', offset, chunk, 'WITHSCORES'), 1
        if #page == 0 then return nil end
        offset = offset + chunk
      end
      local member, score = page[place], tonumber(page[place + 1])
      place = place + 2
      local id = string.sub(member, 17)
      if #passed + #stale >= SKIPPED_MAX then
        saw_all = false
        return nil
      end
      local row = read(text_of(P .. 'j:' .. id))
      if not row or row[STATE] ~= 'ready' or row[RUN_AT] ~= score or lane_key(lane_of(row)) ~= lane then
        stale[#stale + 1] = {lane, member}
      elseif row[EXPIRES_AT] and row[FENCE] == 0 and row[EXPIRES_AT] <= wall then
        passed[#passed + 1] = {id, row, member}
      else
        local body = ask('GET', P .. 'b:' .. id)
        if body then return {score, member, id, row, body} end
        stale[#stale + 1] = {lane, member}
      end
    end
  end
end

-- Yield the due jobs of several lanes of a group in the order in which they are claimed.
local function merged(queue, priority, group, started, wanted)
  local heads = {}
  for _, name in ipairs(ask('ZRANGE', front_key(queue, priority, group), '-inf', exact(wall), 'BYSCORE')) do
    local task, willing = string.match(name, '^(.*)%z(.)$')
    if known[task] and (started or willing == 'a') then
      heads[#heads + 1] = {lane_key(queue, priority, group, task, willing)}
    end
  end
  local chunk = math.floor(wanted / math.max(1, #heads)) + 2
  return function()
    local first
    for _, head in ipairs(heads) do
      head[2] = head[2] or jobs_of(head[1], chunk)
      if head[3] == nil then head[3] = head[2]() or false end
      local job, best = head[3], first and first[3]
      if job and (not best or job[1] < best[1] or (job[1] == best[1] and job[2] < best[2])) then first = head end
    end
    if not first then return nil end
    local job = first[3]
    first[3] = nil
    return job
  end
end

local function plain(queue, wanted, started)
  local chosen = {}
  for _, priority in ipairs(ask('ZRANGE', P .. 'q:' .. queue, 0, -1)) do
    if #chosen >= wanted then break end
    local next_job = merged(queue, priority, '', started, wanted - #chosen)
    while #chosen < wanted do
      local job = next_job()
      if not job then break end
      chosen[#chosen + 1] = job
    end
  end
  return chosen
end

-- core/limits.py says what these three mean.
local function base(set, booked) return math.min(math.max(booked, wall), wall + set[6] * set[5]) end
local function permits(set, booked)
  local step, burst, from = set[5], set[6], base(set, booked)
  local number = burst + math.floor((wall - from) / step)
  while number < burst and from + (number + 1 - burst) * step <= wall do number = number + 1 end
  while number > 0 and from + (number - burst) * step > wall do number = number - 1 end
  return math.max(0, number)
end
local function looks_on(found, walked, free) return found < free + 100 and walked < 1000 end

-- How many jobs run, for a limit. If that is not known, nothing more may start.
local function size(name, key)
  local found = redis.pcall(name, key)
  return type(found) == 'table' and math.huge or found
end

-- Look at the groups of a priority in the order of their turns, and visit the open ones until a visit returns true.
-- Returns how many were open, how many were looked at, and the last of them.
local function walk(queue, priority, set, free, cursor, extra, visit)
  local groups, found, walked, last_walked, enough = P .. 'g:' .. queue .. Z .. priority, 0, 0, nil, false
  local function goes_on() return not enough and looks_on(found, walked, free) end
  local function look(group)
    walked, last_walked = walked + 1, group
    local head = ask('ZRANGE', front_key(queue, priority, group), 0, 0, 'WITHSCORES')
    local ends = set[7][group]
    if not head[1] or tonumber(head[2]) > wall or (ends ~= nil and (not ends or wall < ends)) then return end
    local places
    if set[4] and group ~= '' then
      places = set[4] - size('SCARD', P .. 'pg:' .. queue .. Z .. group) - (extra[group] or 0)
    end
    if places and places <= 0 then return end
    found = found + 1
    enough = visit({group, places})
  end
  local function range(least, most)
    while goes_on() do
      local page = ask('ZRANGE', groups, least, most, 'BYLEX', 'LIMIT', 0, 100)
      for _, group in ipairs(page) do
        if not goes_on() then return end
        look(group)
      end
      if #page < 100 then return end
      least = '(' .. page[#page]
    end
  end
  range('(' .. cursor, '+')
  if goes_on() then look('') end
  if cursor ~= '' then range('-', '[' .. cursor) end
  return found, walked, last_walked
end

local function by_turns(queue, wanted, started)
  local set, chosen, extra = settings[queue], {}, {}
  if not started and (set[3] or set[4] or set[5]) then return chosen end
  local free, booked = wanted, set[5] and tonumber(call('HGET', P .. 'booked', queue) or '0')
  if set[3] then
    local running = 0
    for _, pair in ipairs(call('SMEMBERS', P .. 'pairs')) do
      if string.sub(pair, 1, #queue + 1) == queue .. Z then
        running = running + size('ZCARD', P .. 'x:' .. pair .. Z .. 'running')
      end
    end
    free = math.min(free, set[3] - running)
  end
  if set[5] then free = math.min(free, permits(set, booked)) end
  for _, priority in ipairs(ask('ZRANGE', P .. 'q:' .. queue, 0, -1)) do
    local left = free - #chosen
    if left <= 0 then break end
    local name = queue .. Z .. priority
    local cursor = ask('HGET', P .. 'cursors', name) or ''
    local groups, taken, last_taken = {}, 0, nil
    local function take_from(group)
      group[3] = group[3] or merged(queue, priority, group[1], started, 1)
      local job = group[3]()
      if not job then return false end
      chosen[#chosen + 1], taken, last_taken = job, taken + 1, group[1]
      if group[1] ~= '' then extra[group[1]] = (extra[group[1]] or 0) + 1 end
      return true
    end
    -- The first round is taken on the way, so that the walk ends as soon as that is enough.
    local found, walked, last_walked = walk(queue, priority, set, left, cursor, extra, function(group)
      groups[#groups + 1] = group
      take_from(group)
      return taken >= left
    end)
    local most = math.max(1, math.floor(2 * left / math.max(1, found)))
    for round = 2, most do
      local before = taken
      for _, group in ipairs(groups) do
        if taken >= left then break end
        if not group[2] or round <= group[2] then take_from(group) end
      end
      if taken == before then break end
    end
    local all = looks_on(found, walked, left)
    if taken > 0 and (all or taken == left) then
      cursor = last_taken
    elseif not all and last_walked then
      cursor = last_walked
    end
    write('HSET', P .. 'cursors', name, cursor)
    saw_all = saw_all and all
  end
  if set[5] then
    local mark = base(set, booked) + #chosen * set[5]
    if #chosen > 0 or mark < booked then write('HSET', P .. 'booked', queue, exact(mark)) end
  end
  return chosen
end

local function give(job, started)
  local id, row = job[3], job[4]
  local queue, _, group, task = lane_of(row)
  local lane = string.sub(touch(row), #P + 1)
  local set = 'x:' .. queue .. Z .. task .. Z
  local todo = {{'ZADD', 'leases', lease + row[LEASE_S], id}, {'SADD', 'held:' .. worker, id}}
  local function add(...) todo[#todo + 1] = {...} end
  if row[GROUP] then add('SADD', 'pg:' .. queue .. Z .. group, id) end
  if row[EXPIRES_AT] and row[FENCE] == 0 then add('ZREM', 'expiries', id) end
  if row[BATCH] then
    add('ZREM', 'bm:' .. row[BATCH] .. Z .. 'ready', id)
    add('ZADD', 'bm:' .. row[BATCH] .. Z .. 'running', row[SEQ], id)
  end
  row[STATE], row[WORKER], row[CLAIM_ID], row[STARTED], row[CLAIMED_AT] = 'running', worker, claim_id, started, wall
  row[FENCE], row[ATTEMPT] = row[FENCE] + 1, row[ATTEMPT] + 1
  local text = cmsgpack.pack(row)
  add('ZADD', set .. 'running', row[SEQ], id)
  add('SET', 'j:' .. id, text)
  add('ZREM', set .. 'ready', id)
  add('ZREM', lane, job[2])
  carry_out(todo)
  give_back(id, text, job[5], exact(lease + row[LEASE_S]))
end

local function take(most, started)
  local taken, shares = 0, {}
  for place, name in ipairs(open) do
    shares[place] = math.floor(most / #open) + (place <= most % #open and 1 or 0)
    shares[place + #open] = most
  end
  for place, share in ipairs(shares) do
    local name = open[(place - 1) % #open + 1]
    local wanted = math.min(share, most - taken)
    if wanted > 0 or settings[name].turns then
      local choose = settings[name].turns and by_turns or plain
      for _, job in ipairs(choose(name, wanted, started)) do
        give(job, started)
        taken = taken + 1
      end
    end
  end
  return taken
end

-- Put back jobs that were passed by after their expiry, and that have not expired by a clock that was set back since.
local function put_back()
  for _, id in ipairs(ask('ZRANGE', P .. 'passed', '(' .. exact(wall), '+inf', 'BYSCORE', 'LIMIT', 0, SKIPPED_MAX)) do
    local row = read(text_of(P .. 'j:' .. id))
    if row and row[STATE] == 'ready' then write('ZADD', touch(row), row[RUN_AT], member_of(row[SEQ], id)) end
    write('ZREM', P .. 'passed', id)
  end
end

-- So that the claim can be repeated when its answer is lost, or when it fails in the middle.
local function remembered()
  if #answer == 3 and not left then return {} end
  return {{'LPUSH', claims, string.format('%08.0f', part) .. claim_id}, {'LTRIM', claims, 0, 31}}
end

return writing(function()
  put_back()
  answer[3] = take(limit, true)
  if answer[3] == limit and ahead > 0 then take(ahead, false) end
  answer[2] = saw_all and 1 or 0
  for _, each in ipairs(stale) do write('ZREM', each[1], each[2]) end
  -- The sweep ends them; until then no claim looks at them again.
  for _, each in ipairs(passed) do
    write('ZADD', P .. 'passed', each[2][EXPIRES_AT], each[1])
    write('ZREM', touch(each[2]), each[3])
  end
  mend_lanes()
  carry_out(remembered())
  return answer
end, remembered)
