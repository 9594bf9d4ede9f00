package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"

	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/rpc"
)

// Unreachable is the reason of errors that no server answered: there is none at
// the address, the connection to it broke, or the service that is asked does not
// run. It is the client's own; gRPC's
// code of that name says the same.
const Unreachable fault.Reason = "UNAVAILABLE"

// probePatience bounds the search for the reason of a failed connection.
const probePatience = time.Second

// unsent is the cause of an error that came before anything was sent.
type unsent struct{ cause error }

func (e unsent) Error() string { return e.cause.Error() }
func (e unsent) Unwrap() error { return e.cause }

// unreachable tells that a server cannot be reached, in plain words.
func unreachable(server string, cause error) *fault.Error {
	return fault.Wrap(cause, Unreachable, "cannot reach %s: %s", shown(server), plain(cause))
}

// shown is an address without the secrets that it may hold.
func shown(servers string) string {
	var all []string
	for s := range strings.SplitSeq(servers, ",") {
		s = strings.TrimSpace(s)
		if u, err := url.Parse(s); err == nil {
			u.User, u.RawQuery, u.Fragment = nil, "", ""
			s = u.String()
		}
		all = append(all, s)
	}
	return strings.Join(all, ",")
}

// plain says what went wrong without saying which functions it went through.
func plain(err error) string {
	var number syscall.Errno
	var lookup *net.DNSError
	var request *url.Error
	var answered *connect.Error
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.As(err, &request):
		return request.Err.Error()
	case errors.As(err, &answered):
		return answered.Message()
	}
	return strings.TrimPrefix(err.Error(), "nats: ")
}

// httpFault reads an error of connect. What our server did not say comes from
// the way to it, unless the caller's context ended.
func httpFault(ctx context.Context, server string, err error) *fault.Error {
	f := rpc.FromConnectError(err)
	if errors.Unwrap(f) == nil || connect.IsWireError(err) || ctx.Err() != nil || !onTheWay(err) {
		return f
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		err = unsent{err}
	}
	return unreachable(server, err)
}

// onTheWay reports whether a connection failed. Of a reset one connect says that
// the call was cancelled.
func onTheWay(err error) bool {
	var op *net.OpError
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeCanceled || errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF)
}

// fault reads an error of a call. An OVERLOADED that has a cause, or comes when
// the connection is down, is not of the server but of the connection.
func (t *natsTransport) fault(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != fault.Overloaded {
		return err
	}
	cause := errors.Unwrap(f)
	switch {
	case cause == nil && t.conn.Raw().IsConnected():
		return err
	case errors.Is(cause, bus.ErrNoService):
		return fault.Wrap(unsent{cause}, Unreachable, "%s", f.Message)
	case cause != nil && neverSent(cause):
		return unreachable(t.server, unsent{cause})
	}
	return fault.Wrap(cause, Unreachable, "%s", f.Message)
}

// neverSent reports whether nats.go refused to send.
func neverSent(err error) bool {
	for _, e := range []error{
		nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrDisconnected,
		nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrInvalidConnection,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialFault tells why no connection to NATS came about. nats.go says only that
// no server is available, so the first address is tried once more.
func dialFault(ctx context.Context, servers string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != fault.Overloaded {
		return err
	}
	cause := errors.Unwrap(f)
	switch {
	case errors.Is(cause, nats.ErrAuthorization):
		cause = errors.New("nobody could check the token in time")
	case cause == nil || errors.Is(cause, nats.ErrNoServers):
		cause = probe(ctx, servers)
	}
	return unreachable(servers, unsent{cause})
}

func probe(ctx context.Context, servers string) error {
	silent := errors.New("no NATS server answers there")
	first, _, _ := strings.Cut(servers, ",")
	u, err := url.Parse(strings.TrimSpace(first))
	if err != nil {
		return silent
	}
	port := u.Port()
	if port == "" {
		port = "4222"
	}
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	_ = conn.Close() // it was only opened
	return silent
}
