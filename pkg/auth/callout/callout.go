// Package callout authenticates the connections of an outside NATS server by
// FlexiQ's tokens.
//
// The server asks for each connection of a user that it does not know itself
// (auth callout). The request, encrypted to our key, holds what the client
// showed; the answer, encrypted to the server's, is a JWT with the permissions
// of package auth, those that an embedded server gives, or a refusal. Any
// number of processes answer; a queue group gives each request to one of them.
//
// While none answers, nobody can connect, and connections that stand go on. A
// process that cannot read its tokens does not answer either, so that the
// server tells the client of a timeout, after which it tries again, and not of
// a wrong token.
//
// The server does not ask again. So a connection ends after at most an hour by
// itself, and a revoked token's connections are closed through the system
// account ([Authenticator.Cut]).
package callout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
)

const (
	// Subject is where the server sends its requests, in the account of
	// [Keys.User]; ReplySubjects are where it expects the answers.
	Subject       = "$SYS.REQ.USER.AUTH"
	ReplySubjects = "$SYS._INBOX.>"

	queue      = "flexiq-config"
	headerXKey = "Nats-Server-Xkey"
	audience   = "nats-authorization-request"
	clientKind = "Client"

	// verifyTimeout is below the two seconds that the server waits.
	verifyTimeout = 1500 * time.Millisecond
	// maxAtOnce bounds the requests that are worked on at once.
	maxAtOnce = 64
	// A connection ends within an hour, and those that began together do not all
	// end together.
	connectionLife   = time.Hour
	connectionJitter = 15 * time.Minute
	// cutMemory is how long a cut token is refused whatever a cache says, longer
	// than any cache of tokens remembers.
	cutMemory = 10 * time.Second
)

// Options configure [Start]. All but CAFile and Name are required.
type Options struct {
	URL      string // of the outside server
	CAFile   string // see bus.Options
	Name     string // of the connections
	Keys     Keys
	Verifier *auth.Verifier
	Log      zerolog.Logger
}

// Authenticator answers the server's requests. Make one with [Start].
type Authenticator struct {
	opts   Options
	issuer nkeys.KeyPair
	xkey   nkeys.KeyPair
	conn   *bus.Conn // in the account of the requests
	system *bus.Conn // in the system account

	sub     *nats.Subscription
	drained chan struct{}
	slots   chan struct{}
	work    sync.WaitGroup // requests and cuts
	ctx     context.Context
	cancel  context.CancelFunc

	mu   sync.Mutex
	cuts map[string]time.Time // token id → when
}

// Start connects and answers requests from then on.
func Start(ctx context.Context, o Options) (_ *Authenticator, err error) {
	a := &Authenticator{
		opts:    o,
		drained: make(chan struct{}),
		slots:   make(chan struct{}, maxAtOnce),
		cuts:    make(map[string]time.Time),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	if a.issuer, err = pairOf(o.Keys.Issuer, nkeys.PrefixByteAccount); err != nil {
		return nil, fmt.Errorf("issuer: %w", err)
	}
	if a.xkey, err = pairOf(o.Keys.XKey, nkeys.PrefixByteCurve); err != nil {
		return nil, fmt.Errorf("xkey: %w", err)
	}
	connect := func(role, seed string) (*bus.Conn, error) {
		log := o.Log.With().Str("role", role).Logger()
		conn, err := bus.Connect(ctx, bus.Options{URL: o.URL, CAFile: o.CAFile, Name: o.Name + " " + role, Seed: seed, Log: log})
		if err != nil {
			return nil, fmt.Errorf("connect as %s: %w", role, err)
		}
		return conn, nil
	}
	if a.conn, err = connect("authenticator", o.Keys.User); err != nil {
		return nil, err
	}
	if a.system, err = connect("system", o.Keys.System); err != nil {
		a.conn.Close(ctx)
		return nil, err
	}
	if err := a.listen(); err != nil {
		a.Close(ctx)
		return nil, err
	}
	return a, nil
}

func (a *Authenticator) listen() error {
	nc := a.conn.Raw()
	sub, err := nc.QueueSubscribe(Subject, queue, a.receive)
	if err != nil {
		return fmt.Errorf("hear requests to authenticate: %w", err)
	}
	sub.SetClosedHandler(func(string) { close(a.drained) })
	a.sub = sub
	if err := nc.FlushTimeout(verifyTimeout); err != nil {
		return fmt.Errorf("hear requests to authenticate: %w", err)
	}
	return nil
}

// receive takes one request, and waits while too many are worked on.
func (a *Authenticator) receive(msg *nats.Msg) {
	a.slots <- struct{}{}
	a.work.Go(func() {
		defer func() { <-a.slots }()
		a.answer(msg)
	})
}

// answer replies to a request, or leaves it unanswered.
func (a *Authenticator) answer(msg *nats.Msg) {
	serverKey := msg.Header.Get(headerXKey)
	req, err := a.open(msg.Data, serverKey)
	if err != nil {
		a.opts.Log.Warn().Err(err).Msg("a request to authenticate cannot be read; are the keys those of the server?")
		return
	}
	claims, err := a.decide(req)
	if err != nil && !fault.Is(err, fault.Unauthenticated) {
		a.opts.Log.Error().Err(err).Msg("connection not answered: tokens cannot be checked")
		return
	}
	res := jwt.NewAuthorizationResponseClaims(req.UserNkey)
	res.Audience = req.Server.ID
	if err != nil {
		a.opts.Log.Debug().Str("remote", req.ClientInformation.Host).Msg("connection refused: token not valid")
		res.Error = fault.Of(err).Message
	} else if res.Jwt, err = claims.Encode(a.issuer); err != nil {
		a.opts.Log.Error().Err(err).Msg("connection not answered: its permissions cannot be signed")
		return
	}
	if err := a.reply(msg, res, serverKey); err != nil {
		a.opts.Log.Warn().Err(err).Msg("connection not answered")
	}
}

// open decrypts a request and checks that the server signed it.
func (a *Authenticator) open(data []byte, serverKey string) (*jwt.AuthorizationRequestClaims, error) {
	text, err := a.xkey.Open(data, serverKey)
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	req, err := jwt.DecodeAuthorizationRequestClaims(string(text)) // checks the signature
	if err != nil {
		return nil, errors.New("it is not a signed request") // the error itself may quote a token
	}
	if req.Issuer != req.Server.ID || req.Audience != audience {
		return nil, errors.New("it was not signed by its server")
	}
	return req, nil
}

// decide checks the token that a client showed: UNAUTHENTICATED when it does
// not let the client in, anything else when that cannot be told now.
func (a *Authenticator) decide(req *jwt.AuthorizationRequestClaims) (*jwt.UserClaims, error) {
	if req.ClientInformation.Kind != clientKind {
		return nil, fault.New(fault.Unauthenticated, "only clients have tokens")
	}
	ctx, cancel := context.WithTimeout(a.ctx, verifyTimeout)
	defer cancel()
	id, expires, err := a.opts.Verifier.VerifyUntil(ctx, tokenText(req.ConnectOptions), req.ClientInformation.Host)
	if err != nil {
		return nil, err
	}
	if a.wasCut(id.TokenID) {
		return nil, fault.New(fault.Unauthenticated, "the token is not valid")
	}
	life := connectionLife - rand.N(connectionJitter)
	if end := time.Now().Add(life); end.Before(expires) {
		expires = end
	}
	return a.claims(req.UserNkey, id, expires), nil
}

// claims are what a client may do, as the server reads it. The token's id as
// its name is how its connections are found again.
func (a *Authenticator) claims(user string, id auth.Identity, expires time.Time) *jwt.UserClaims {
	publish, subscribe := auth.Permissions(id)
	c := jwt.NewUserClaims(user)
	c.Name = id.TokenID
	c.Audience = a.opts.Keys.Account
	c.Expires = expires.Unix()
	c.Permissions.Pub.Allow.Add(publish...)
	c.Permissions.Sub.Allow.Add(subscribe...)
	c.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket)
	return c
}

// tokenText is where clients of every language can put a token.
func tokenText(o jwt.ConnectOptions) string {
	switch {
	case o.Token != "":
		return o.Token
	case o.Password != "":
		return o.Password
	}
	return o.Username
}

func (a *Authenticator) reply(msg *nats.Msg, res *jwt.AuthorizationResponseClaims, serverKey string) error {
	text, err := res.Encode(a.issuer)
	if err != nil {
		return err
	}
	sealed, err := a.xkey.Seal([]byte(text), serverKey)
	if err != nil {
		return err
	}
	return msg.Respond(sealed)
}

// Check tells whether requests can be heard now.
func (a *Authenticator) Check(context.Context) error {
	if !a.conn.Raw().IsConnected() {
		return errors.New("not connected to the NATS server as its authenticator")
	}
	return nil
}

// Close answers what was received, ends cuts and disconnects. Requests go to
// other processes from then on.
func (a *Authenticator) Close(ctx context.Context) {
	if a.sub != nil {
		if !a.conn.Raw().IsConnected() || a.sub.Drain() != nil {
			_ = a.sub.Unsubscribe() // no connection: there is nothing to drain
		}
		select {
		case <-a.drained:
		case <-ctx.Done():
		}
	}
	a.cancel()
	a.work.Wait()
	a.conn.Close(ctx)
	a.system.Close(ctx)
}
