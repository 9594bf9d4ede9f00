// Package embedded authenticates the connections of an embedded NATS server by
// FlexiQ's tokens.
//
// A client shows its token as auth_token, as user name or as password, and
// gets the permissions of package auth, nothing else; no user works without
// one. The process's own services connect as one service user whose password
// never leaves the process. A connection lives as long as its token: the
// server ends it at the expiry, [Authenticator.Cut] at a revocation.
package embedded

import (
	"context"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

const (
	verifyTimeout = 2 * time.Second
	// cutMemory is how long a cut token is refused whatever a cache says,
	// longer than any cache of tokens remembers.
	cutMemory = 10 * time.Second
	// sweepEvery bounds how many closed connections are remembered.
	sweepEvery = 1024
)

// Authenticator implements server.Authentication. Make one with [New], give it
// to the server's options, and [Authenticator.Attach] the server.
type Authenticator struct {
	verifier *auth.Verifier
	user     string
	password string
	log      zerolog.Logger

	mu         sync.Mutex
	server     *server.Server
	conns      map[string]map[uint64]struct{} // connection ids by token id
	cut        map[string]time.Time           // token id → when
	registered int                            // since the last sweep
}

// New makes an authenticator. Whoever shows the service user and its password
// is one of our own services.
func New(v *auth.Verifier, serviceUser, servicePassword string, log zerolog.Logger) *Authenticator {
	return &Authenticator{
		verifier: v,
		user:     serviceUser,
		password: servicePassword,
		log:      log,
		conns:    make(map[string]map[uint64]struct{}),
		cut:      make(map[string]time.Time),
	}
}

// Attach names the server whose connections are cut. It comes before the
// server accepts connections.
func (a *Authenticator) Attach(s *server.Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = s
}

// Check implements server.Authentication. Anything but a client's connection
// (a cluster, a leaf node, a gateway) is refused.
func (a *Authenticator) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	opts := c.GetOpts()
	if a.isService(opts.Username, opts.Password) {
		publish, subscribe := auth.ServicePermissions()
		c.RegisterUser(&server.User{Username: a.user, Permissions: allow(publish, subscribe)})
		return true
	}
	text := tokenText(opts)
	ctx, cancel := context.WithTimeout(context.Background(), verifyTimeout)
	defer cancel()
	id, expires, err := a.verifier.VerifyUntil(ctx, text, remote(c))
	if err == nil && !a.remember(id, c.GetID()) {
		err = errCut
	}
	if err != nil {
		a.refuse(c, err)
		return false
	}
	publish, subscribe := auth.Permissions(id)
	c.RegisterUser(&server.User{
		Username:           id.TokenID,
		Permissions:        allow(publish, subscribe),
		ConnectionDeadline: expires,
	})
	return true
}

// remote is the address of a client; one inside this process has none.
func remote(c server.ClientAuthentication) string {
	if addr := c.RemoteAddress(); addr != nil {
		return addr.String()
	}
	return ""
}

func allow(publish, subscribe []string) *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
	}
}

func (a *Authenticator) isService(user, password string) bool {
	if a.user == "" || a.password == "" {
		return false
	}
	u := subtle.ConstantTimeCompare([]byte(user), []byte(a.user))
	p := subtle.ConstantTimeCompare([]byte(password), []byte(a.password))
	return u&p == 1
}

// tokenText is where clients of every language can put a token.
func tokenText(opts *server.ClientOpts) string {
	switch {
	case opts.Token != "":
		return opts.Token
	case opts.Password != "":
		return opts.Password
	}
	return opts.Username
}

// errCut is why a token is refused that a cache still takes for valid.
var errCut = fault.New(fault.Unauthenticated, "the token was revoked just now")

// refuse says why, to the log alone. The server logs the user name of a refused
// connection, and tells it to its system account; a token may stand there, and
// be a valid one, so the name is replaced.
func (a *Authenticator) refuse(c server.ClientAuthentication, err error) {
	nothing := &server.SubjectPermission{Deny: []string{">"}}
	c.RegisterUser(&server.User{
		Username:    "refused",
		Permissions: &server.Permissions{Publish: nothing, Subscribe: nothing},
	})
	if fault.Is(err, fault.Unauthenticated) {
		a.log.Debug().Stringer("remote", c.RemoteAddress()).Msg("connection refused: token not valid")
		return
	}
	a.log.Error().Err(err).Msg("connection refused: tokens cannot be checked")
}

// remember notes a connection before it may do anything, so that a cut cannot
// miss it. It returns false when the token has just been cut.
func (a *Authenticator) remember(id auth.Identity, conn uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.cut[id.TokenID]; ok && time.Since(at) < cutMemory {
		return false
	}
	if a.registered++; a.registered >= sweepEvery {
		a.registered = 0
		a.sweep()
	}
	if a.conns[id.TokenID] == nil {
		a.conns[id.TokenID] = make(map[uint64]struct{})
	}
	a.conns[id.TokenID][conn] = struct{}{}
	return true
}

// sweep forgets what is closed; the server tells nobody when a client leaves.
func (a *Authenticator) sweep() {
	for token, at := range a.cut {
		if time.Since(at) >= cutMemory {
			delete(a.cut, token)
		}
	}
	if a.server == nil {
		return
	}
	for token, ids := range a.conns {
		for id := range ids {
			if a.server.GetClient(id) == nil {
				delete(ids, id)
			}
		}
		if len(ids) == 0 {
			delete(a.conns, token)
		}
	}
}

// Cut closes the connections made with a token and refuses new ones until
// every cache has learnt of the revocation. It returns how many it closed.
func (a *Authenticator) Cut(tokenID string) int {
	a.mu.Lock()
	a.cut[tokenID] = time.Now()
	ids, s := a.conns[tokenID], a.server
	delete(a.conns, tokenID)
	a.mu.Unlock()
	closed := 0
	for id := range ids {
		if s.DisconnectClientByID(id) == nil {
			closed++
		}
	}
	return closed
}
