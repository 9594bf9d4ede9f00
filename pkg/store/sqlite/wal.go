package sqlite

import (
	"os"
	"time"
)

const (
	checkpointPause = time.Second // between two attempts to truncate the log
	checkpointWait  = 500 * time.Millisecond
)

// boundLog truncates the log once it is longer than the limit. SQLite by itself
// reuses the log only at a moment at which nobody reads from it, and with
// overlapping readers that moment never comes. So the readers of this process
// are held back, which takes no longer than a page, and others are waited for
// a little. The caller has the writer's slot.
func (s *Store) boundLog(c *conn) {
	info, err := os.Stat(s.path + "-wal")
	if err != nil || info.Size() <= s.walLimit || time.Since(s.checkpointed) < checkpointPause {
		return
	}
	s.checkpointed = time.Now()
	var held []*conn
	defer func() {
		for _, r := range held {
			s.reader <- r
		}
	}()
	timer := time.NewTimer(checkpointWait)
	defer timer.Stop()
	for len(held) < readers {
		select {
		case r := <-s.reader:
			held = append(held, r)
		case <-s.closed:
			return
		case <-timer.C:
			return
		}
	}
	c.SetBusyTimeout(checkpointWait)
	defer c.SetBusyTimeout(0)
	var busy bool
	_, err = c.one("PRAGMA wal_checkpoint(TRUNCATE)", func(r *row) { busy = r.bool() })
	if err != nil || busy {
		s.log.Warn().Err(err).Bool("busy", busy).Int64("bytes", info.Size()).Msg("log not truncated")
	}
}
