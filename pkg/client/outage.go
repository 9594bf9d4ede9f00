package client

import (
	"sync"

	"flexiq/pkg/fault"
)

// talk is a kind of call by which a worker notices an outage.
type talk string

const (
	claims     talk = "claims"
	heartbeats talk = "heartbeats"
)

// outage tells of each time without a server once, and of its end.
type outage struct {
	mu      sync.Mutex
	noticed talk // by what; "": there is none
}

// heard takes in how a call ended. Only calls of the kind that noticed an
// outage see its end, so that two kinds which fare differently do not tell of
// it again and again.
func (s *shift) heard(src *source, by talk, err error) {
	o := &src.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil && o.noticed == by:
		o.noticed = ""
		s.w.opts.Log.Info().Str("token", src.c.TokenID()).Msg("the server answers again")
	case err != nil && o.noticed == "" && unknown(err):
		o.noticed = by
		f := fault.Of(err)
		s.w.opts.Log.Warn().Str("token", src.c.TokenID()).Str("reason", string(f.Reason)).
			Msgf("%s fail, and are tried again until the server is back: %s", by, f.Message)
	}
}
