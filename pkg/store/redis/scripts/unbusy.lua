-- unbusy: takes namespaces off the list of busy ones, unless they were put on
-- it again since.
--
-- ARGV  2  number of namespaces; then for each: name, number under which it was there

for _ = 1, number() do
  local ns, n = arg(), number()
  if tonumber(call('ZSCORE', base .. 'busy', ns) or -1) == n then call('ZREM', base .. 'busy', ns) end
end
return 1
