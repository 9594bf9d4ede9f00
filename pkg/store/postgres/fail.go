package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"flexiq/pkg/fault"
	"flexiq/pkg/store"
)

var (
	errFlushLost = errors.New("the server went away before the commit was flushed; whether it lasts is not known")
	errHeld      = errors.New("another transaction holds the lock of the namespace")
)

// state is the SQLSTATE of an error, empty when the server did not send one.
func state(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// passing reports whether the server undid a transaction for a reason that
// another try does not meet again.
func passing(err error) bool {
	switch state(err) {
	case "40001", "40P01": // serialization failure, deadlock
		return true
	}
	return false
}

// held reports whether a lock was waited for in vain.
func held(err error) bool { return state(err) == "55P03" || errors.Is(err, errHeld) }

// lost reports whether the connection is gone. What was sent last may have been done.
func lost(err error) bool {
	switch state(err) {
	case "":
	case "57P01", "57P02", "57P03", "57P05", "25P03": // shutdowns, sessions ended by the server
		return true
	default:
		return false
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// unavailable reports whether an error is about the database as a whole and
// not about one unit of work.
func unavailable(err error) bool {
	if code := state(err); len(code) == 5 {
		switch code[:2] {
		case "08", "28", "53", "57", "58": // connection, authorization, resources, operator, system
			return true
		}
		switch code {
		case "25006", "25P03", "40001", "40P01", "55P03", "3D000": // read-only, idle too long, contention, no such database
			return true
		}
		return false
	}
	return lost(err) || errors.Is(err, puddle.ErrClosedPool) || errors.Is(err, errFlushLost) || errors.Is(err, errHeld) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || fault.Is(err, fault.StorageUnavailable)
}

// fail turns an error into what the contract promises. ctx is the caller's.
func (s *Store) fail(ctx context.Context, op string, err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f), errors.Is(err, store.ErrStale):
		return err
	case !unavailable(err):
		return fault.Wrap(fmt.Errorf("postgres: %s: %w", op, err), fault.Internal, "internal error of the store")
	case ctx.Err() != nil:
		return fmt.Errorf("postgres: %s: %w", op, ctx.Err())
	}
	return fault.Wrap(fmt.Errorf("postgres: %s: %w", op, err), fault.StorageUnavailable, "the store cannot be reached, is full or too slow")
}
