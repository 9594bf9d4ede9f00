-- Dead letters that retry themselves: how often each did, and their order.
--
-- Reason: a dead letter is retried automatically a few times at most, so the count
-- stays with it when it becomes a job again and dies again. The index finds the
-- oldest ones without walking over those that were shed, which are never retried.
--
-- oldest program: 1

ALTER TABLE jobs ADD COLUMN auto_retries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead_letters ADD COLUMN auto_retries INTEGER NOT NULL DEFAULT 0;
CREATE INDEX dead_letters_retry ON dead_letters (ns, finished_at, id) WHERE shed = 0;
