-- feed: the installation's list of changes, each object once by its last
-- number.

local function publish(change)
  local n = call('HINCRBY', KEYS[1], 'changes', 1)
  call('ZADD', base .. 'changes', n, change)
end
