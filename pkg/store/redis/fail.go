package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

// reply is the text of an error that the server sent, without a leading ERR;
// empty for any other error.
func reply(err error) string {
	var e redis.Error
	if !errors.As(err, &e) || errors.Is(err, redis.Nil) {
		return ""
	}
	return strings.TrimPrefix(e.Error(), "ERR ")
}

func starts(text string, with ...string) bool {
	for _, w := range with {
		if strings.HasPrefix(text, w) {
			return true
		}
	}
	return false
}

// untried reports whether an error says that nothing was done, for a reason
// that may be over in a moment.
func untried(err error) bool {
	if text := reply(err); text != "" {
		return starts(text, "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "MOVED", "ASK", "max number of clients") ||
			strings.Contains(text, "non local key")
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// lost reports whether the connection broke. What was sent last may have been done.
func lost(err error) bool {
	if err == nil || reply(err) != "" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network)
}

// unavailable reports whether an error is about the database and not about what
// it was asked.
func unavailable(err error) bool {
	if text := reply(err); text != "" {
		return untried(err) || starts(text, "OOM", "MISCONF", "NOREPLICAS", "BUSY", "UNKILLABLE", "NOAUTH", "WRONGPASS", "NOPERM", "invalid password")
	}
	return untried(err) || lost(err) || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		err != nil && strings.Contains(err.Error(), "cluster has no nodes") || fault.Is(err, fault.StorageUnavailable)
}

// fail turns an error into what the contract promises. ctx is the caller's.
func (s *Store) fail(ctx context.Context, op string, err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f), errors.Is(err, store.ErrStale):
		return err
	case !unavailable(err):
		return fault.Wrap(fmt.Errorf("redis: %s: %w", op, err), fault.Internal, "internal error of the store")
	case ctx.Err() != nil:
		return fmt.Errorf("redis: %s: %w", op, ctx.Err())
	}
	return fault.Wrap(fmt.Errorf("redis: %s: %w", op, err), fault.StorageUnavailable, "the store cannot be reached, is full or too slow")
}
