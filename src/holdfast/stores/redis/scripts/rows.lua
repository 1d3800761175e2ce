#!lua flags=no-writes
-- Read rows of jobs as they are at one instant.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4], …: ids.
-- Returns {wall, lease, row, body, lease end, row, body, lease end, …}; nil for what is not there.

local wall, lease = now()
local answer = {exact(wall), exact(lease)}
for place = 4, #ARGV do
  local id = ARGV[place]
  local row = text_of(P .. 'j:' .. id)
  answer[#answer + 1] = row
  answer[#answer + 1] = row and text_of(P .. 'b:' .. id)
  answer[#answer + 1] = row and call('ZSCORE', P .. 'leases', id)
end
return answer
