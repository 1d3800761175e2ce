#!lua flags=allow-oom
-- Commit what a verb has decided, if what it looked at is still the same.
-- KEYS[1], ARGV[1] to ARGV[3]: see lib.lua. ARGV[4]: what was looked at, ARGV[5]: what is to be done (see writes.lua),
-- both lists of lists in MessagePack; their keys lack the prefix.
-- Returns {1, ver}, or {0, n} if the n-th thing that was looked at is another by now: then nothing was done.

finish()
local seen, todo = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])

local look = {
  row = function(key) return text_of(P .. key) end,
  field = function(key, field) return call('HGET', P .. key, field) end,
  score = function(key, member)
    local score = call('ZSCORE', P .. key, member)
    return score and tonumber(score)
  end,
  member = function(key, member) return call('SISMEMBER', P .. key, member) end,
  length = function(key) return ask('LLEN', P .. key) end,
  size = function(key) return call('ZCARD', P .. key) end,
}
for number, each in ipairs(seen) do
  if look[each[1]](each[2], each[3]) ~= each[4] then return {0, number} end
end

return writing(function()
  carry_out(todo)
  mend_lanes()
  if came then call('SPUBLISH', P .. 'hint', '') end
  return {1, call('HINCRBY', P .. 'meta', 'ver', 1)}
end)
