-- erased: notes that a namespace was erased, and tells that its quota changed. It
-- stays on the installation's lists, for whoever registered before and writes
-- only now, and leaves them by forget.lua when it was not used again for long.
--
-- ARGV  2  the namespace
--       3  its quota as the list of changes names it
--
-- Answers 1 when it has a token meanwhile, else 0.

local ns, change = arg(), arg()
if call('EXISTS', base .. 'tokens:' .. ns) == 1 then return 1 end
if call('ZSCORE', base .. 'known', ns) or call('ZSCORE', base .. 'trails', ns) then call('ZADD', base .. 'erased', now, ns) end
publish(change)
return 0
