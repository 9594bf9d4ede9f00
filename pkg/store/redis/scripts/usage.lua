-- usage: reads what a namespace holds. It writes nothing.
--
-- ARGV  2  field of the quota document
--
-- Answers {now, live, running, archived, dead, shed, 1 if it has a document, revision, default revision,
-- 1 if the document was written past the door, count and letter of the rate, tokens, part, filled_at}.

local q, b = in_force(arg()), read_bucket()
return { now, call('ZCARD', base .. 'live'), call('ZCARD', base .. 'running'), call('ZCARD', base .. 'archived'),
  call('ZCARD', base .. 'died'), call('ZCARD', base .. 'shed'), q.raw and 1 or 0, q.revision, q.fallback, q.past and 1 or 0,
  b.count, b.unit, b.tokens, b.part, b.at }
