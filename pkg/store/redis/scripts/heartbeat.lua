-- heartbeat: extends leases of one namespace.
--
-- ARGV  2  number of beats; then for each: id, lease (32 bytes, or empty), length in µs
--
-- Answers per beat {0} when the lease is lost, else {1, 1 if cancelled, end of the lease}.

local out = {}
for i = 1, number() do
  local id, lease, extend = arg(), arg(), number()
  local j = lease ~= '' and head(id)
  out[i] = { 0 }
  if j and j.state == RUNNING and j.lease == lease then
    local ends = tonumber(call('ZSCORE', base .. 'running', id) or 0)
    local wanted = math.min(now + extend, j.started + j.timeout)
    if wanted > ends then
      ends = wanted
      call('ZADD', base .. 'running', ends, id)
    end
    out[i] = { 1, has(j.flags, CANCELLING) and 1 or 0, ends }
  end
end
return out
