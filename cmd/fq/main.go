// Command fq is the command line of FlexiQ's producers, workers and operators.
//
// It speaks to the server of FLEXIQ_SERVER with the token of FLEXIQ_TOKEN, or
// to the current context (fq context). Results go to standard output, as
// tables or, with --output json, as the bodies of the interface's responses
// with 64-bit integers as numbers. Errors go to standard error with code,
// reason and details. It exits with 0 when everything asked for was done, 2
// when it was asked in a wrong way, and 1 otherwise.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal stops in order; a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}
