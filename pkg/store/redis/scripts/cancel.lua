-- cancel: ends pending jobs of one namespace as cancelled and marks running ones.
--
-- ARGV  2  1 when a filter selected the jobs: then marked ones, and ones that left the state below, are passed over
--       3  state that the filter names, or empty
--       4  number of jobs; then their ids
--
-- Answers {cancelled, marked, not live, the cancelled as {id, queue, task, attempt}}.

local by_filter, state = arg() == '1', optional()
local cancelled, marked, missing, ended = 0, 0, 0, {}
for _ = 1, number() do
  local j = head(arg())
  if not j or j.state ~= PENDING and j.state ~= RUNNING then
    missing = missing + 1
  elseif by_filter and (has(j.flags, CANCELLING) or state and state ~= j.state) then
    -- it moved since it was selected
  elseif j.state == PENDING then
    move(j, CANCELLED, '')
    cancelled = cancelled + 1
    ended[cancelled] = { j.id, j.queue, j.task, j.attempt }
  else
    marked = marked + 1
    if not has(j.flags, CANCELLING) then
      call('SETRANGE', base .. 'j:' .. j.id, 2, string.char(j.flags + CANCELLING))
    end
  end
end
write_indexes()
return { cancelled, marked, missing, ended }
