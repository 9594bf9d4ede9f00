package callout

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Subjects of the system account, for the permissions of [Keys.System].
const (
	connectionsSubject = "$SYS.REQ.SERVER.PING.CONNZ"
	kickSubject        = "$SYS.REQ.SERVER.%s.KICK"
	// AllKicks covers the subjects by which connections are closed.
	AllKicks = "$SYS.REQ.SERVER.*.KICK"
	// Connections is the subject by which they are found.
	Connections = connectionsSubject
)

const (
	// A connection that was answered just before a cut may come to stand just
	// after it, on this server or by another process whose cache is old: a cut
	// looks again when no cache can still take the token for valid.
	secondLook = 4 * time.Second
	// gatherTime bounds one look over the servers, gatherIdle how long it waits
	// for one more of them.
	gatherTime = 5 * time.Second
	gatherIdle = 500 * time.Millisecond
	// maxLooks bounds how often a look is repeated because it closed something.
	maxLooks = 100
	pageSize = 1024
)

// Cut closes the connections made with a token, on every server of the
// installation, and refuses new ones here until every cache has learnt of the
// revocation. It does not wait.
func (a *Authenticator) Cut(tokenID string) {
	a.mu.Lock()
	now := time.Now()
	for id, at := range a.cuts {
		if now.Sub(at) >= cutMemory {
			delete(a.cuts, id)
		}
	}
	a.cuts[tokenID] = now
	a.mu.Unlock()
	a.work.Go(func() {
		a.kickAll(tokenID)
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(secondLook):
		}
		a.kickAll(tokenID)
	})
}

func (a *Authenticator) wasCut(tokenID string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.cuts[tokenID]
	return ok && time.Since(at) < cutMemory
}

// kickAll looks until a look finds nothing.
func (a *Authenticator) kickAll(tokenID string) {
	for range maxLooks {
		closed, err := a.kick(tokenID)
		if err != nil && a.ctx.Err() == nil {
			a.opts.Log.Warn().Err(err).Str("token", tokenID).Msg("connections of a revoked token may stay until they end by themselves")
		}
		if err != nil || closed == 0 {
			return
		}
		a.opts.Log.Debug().Str("token", tokenID).Int("closed", closed).Msg("connections of a revoked token closed")
	}
}

// listing is what a server answers about its connections.
type listing struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Data struct {
		Connections []struct {
			CID uint64 `json:"cid"`
		} `json:"connections"`
	} `json:"data"`
}

// kick asks all servers for the connections of a token and closes them. It
// returns how many it closed.
func (a *Authenticator) kick(tokenID string) (closed int, err error) {
	nc := a.system.Raw()
	inbox := a.system.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails when closed, and then it is unsubscribed
	ask, err := json.Marshal(map[string]any{"auth": true, "user": tokenID, "acc": a.opts.Keys.Account, "limit": pageSize})
	if err != nil {
		return 0, err
	}
	if err := nc.PublishRequest(connectionsSubject, inbox, ask); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, gatherTime)
	defer cancel()
	for {
		msg, err := next(ctx, sub)
		if err != nil {
			return closed, a.ctx.Err()
		}
		var l listing
		if err := json.Unmarshal(msg.Data, &l); err != nil {
			return closed, fmt.Errorf("a server's connections: %w", err)
		}
		for _, c := range l.Data.Connections {
			body, err := json.Marshal(map[string]uint64{"cid": c.CID})
			if err != nil {
				return closed, err
			}
			// The server does nothing for a request without a reply subject.
			if err := nc.PublishRequest(fmt.Sprintf(kickSubject, l.Server.ID), a.system.NewInbox(), body); err != nil {
				return closed, err
			}
			closed++
		}
	}
}

// next waits a moment for one more server's answer.
func next(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, gatherIdle)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}
