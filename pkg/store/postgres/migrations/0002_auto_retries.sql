-- Dead letters that retry themselves: how often each did, and their order.
--
-- Reason: a dead letter is retried automatically a few times at most, so the count
-- stays with it when it becomes a job again and dies again. The index finds the
-- oldest ones without walking over those that were shed, which are never retried.
--
-- oldest program: 1

alter table flexiq.jobs add column auto_retries int not null default 0;
alter table flexiq.dead_letters add column auto_retries int not null default 0;
create index dead_letters_retry on flexiq.dead_letters (ns, finished_at, id) where not shed;
