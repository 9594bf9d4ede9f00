package main

import (
	"context"
	"errors"
	"maps"
	"time"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// answerPatience is how long answers of what is on its way are waited for once
// the command is told to stop.
const answerPatience = 5 * time.Second

// outlive makes a context that ends when ctx has ended for so long. Cancel it
// to free what it holds.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		defer cancel()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-late.Done():
		}
	})
	return late, func() {
		unhook()
		cancel()
	}
}

// fate is what is known of jobs whose call failed.
type fate string

const (
	refused fate = ""         // they are not enqueued
	unknown fate = "unknown"  // they may be
	notSent fate = "not_sent" // they never left the command
)

func fateOf(err error) fate {
	switch {
	case client.MayHaveEnqueued(err):
		return unknown
	case fault.Is(err, fault.Cancelled):
		return notSent
	}
	return refused
}

// interrupted reports whether err says no more than that the command was told
// to stop.
func interrupted(err error) bool {
	return fault.Is(err, fault.Cancelled) || errors.Is(err, context.Canceled)
}

// told is a fault as it is shown: what is left in doubt is said.
func told(err error) *fault.Error {
	f := fault.Of(err)
	if !interrupted(err) && fateOf(err) == refused {
		return f
	}
	shown := &fault.Error{Reason: f.Reason, Message: f.Message, Details: maps.Clone(f.Details)}
	if interrupted(err) {
		shown.Message = "stopped before it was done"
	}
	if client.MayHaveEnqueued(err) {
		shown.Message += "; the outcome is unknown, it may have been enqueued"
		shown.With("outcome", string(unknown))
	}
	return shown
}
