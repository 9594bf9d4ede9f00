-- forget: takes a namespace off the installation's lists, and tells that its
-- quota changed.
--
-- ARGV  2  the namespace
--       3  its quota as the list of changes names it
--
-- Answers 1.

local ns, change = arg(), arg()
for _, list in ipairs({ 'known', 'trails', 'busy', 'scheduled', 'streamed' }) do call('ZREM', base .. list, ns) end
publish(change)
return 1
