#!lua flags=no-writes
-- Merge sets that are ordered by arrival.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4]: below which number, '+inf' for all. ARGV[5]: how many.
-- ARGV[6], …: the sets, without the prefix.
-- Returns {number, id, number, id, …}, the newest first.

local found, most = {}, tonumber(ARGV[5])
for place = 6, #ARGV do
  local page = ask('ZRANGE', P .. ARGV[place], ARGV[4], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most, 'WITHSCORES')
  for each = 1, #page, 2 do found[#found + 1] = {tonumber(page[each + 1]), page[each]} end
end
table.sort(found, function(one, other) return one[1] > other[1] end)
local answer = {}
for place = 1, math.min(most, #found) do
  answer[#answer + 1] = found[place][1]
  answer[#answer + 1] = found[place][2]
end
return answer
