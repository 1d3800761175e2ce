#!lua flags=no-writes
-- Read the first lines of the histories of jobs.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4]: how many of each. ARGV[5], …: ids.
-- Returns a list of lines for each id.

local answer = {}
for place = 5, #ARGV do
  local lines = {}
  for _, name in ipairs(ask('LRANGE', P .. 'h:' .. ARGV[place], 0, tonumber(ARGV[4]) - 1)) do
    local number, kind = string.sub(name, 1, 16), string.sub(name, 17)
    local line = ask('ZRANGE', P .. 'v:' .. kind, number, number, 'BYSCORE')[1]
    if line then lines[#lines + 1] = line end
  end
  answer[#answer + 1] = lines
end
return answer
