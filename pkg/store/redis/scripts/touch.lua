-- touch: notes when tokens were last used.
--
-- ARGV  2  number of tokens; then for each: id, time

for _ = 1, number() do
  local id, at = arg(), number()
  if call('EXISTS', base .. 'token:' .. id) == 1 and at > tonumber(call('HGET', base .. 'touched', id) or 0) then
    call('HSET', base .. 'touched', id, at)
  end
end
return 1
