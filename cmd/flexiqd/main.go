// Command flexiqd is the FlexiQ daemon. Without arguments it runs all four
// services over an embedded NATS server and an SQLite file, with no other
// software; `flexiqd serve admission config` runs some of them against an
// outside NATS server and a shared store.
//
// The package is the only place that knows every part: it parses the options,
// opens the store and the bus, hands them to the chosen services, and stops
// everything in order on a signal.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// exit codes of the command.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// run is the whole program with its surroundings as parameters. Options that
// are not in args come from the environment.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	tuneMemory()
	dropEmpty()
	var cli commands
	exited := false
	parser, err := newParser(&cli, stdout, stderr, func(int) { exited = true })
	if err != nil {
		fmt.Fprintln(stderr, "flexiqd:", err)
		return exitError
	}
	command, err := parser.Parse(args)
	if exited {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "flexiqd:", err)
		return exitUsage
	}
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(stdio{out: stdout, err: stderr})
	if err := command.Run(); err != nil {
		fmt.Fprintln(stderr, "flexiqd:", err)
		var usage *usageError
		if errors.As(err, &usage) {
			return exitUsage
		}
		return exitError
	}
	return exitOK
}

// dropEmpty takes options out of the environment that are empty there: files of
// settings list them without a value, and mean that they are not set.
func dropEmpty() {
	for _, setting := range os.Environ() {
		if name, value, _ := strings.Cut(setting, "="); value == "" && strings.HasPrefix(name, "FLEXIQ_") {
			os.Unsetenv(name)
		}
	}
}

// newParser makes the parser of the command line. kong calls exit after --help
// and --version.
func newParser(cli *commands, stdout, stderr io.Writer, exit func(int)) (*kong.Kong, error) {
	return kong.New(cli,
		kong.Name("flexiqd"),
		kong.Description("FlexiQ: a multi-tenant background-job queue. Without a command it serves everything."),
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
		kong.Vars{"version": version()},
		kong.UsageOnError(),
	)
}

type stdio struct{ out, err io.Writer }

// usageError is a mistake in the options, named by flag.
type usageError struct{ flag, text string }

func (e *usageError) Error() string { return e.flag + ": " + e.text }

// tuneMemory trades memory for fewer collections, as a queue makes much short-lived
// garbage. The environment's GOGC and GOMEMLIMIT win.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		const limit = 2 << 30
		debug.SetMemoryLimit(limit)
	}
}

func version() string {
	v := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("flexiqd %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
