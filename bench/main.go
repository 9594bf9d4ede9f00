// Command bench measures FlexiQ beside its peers on one machine in one run:
// River on PostgreSQL and SQLite, asynq on Redis. Both sides of a scenario use
// the same database server with the same durability, the same payload and the
// same load, and take turns round by round, so that what disturbs the machine
// disturbs both. FlexiQ is measured the way it is used: the client library,
// NATS, a flexiqd process, a namespace with all its limits set. The peers are
// libraries, so they run in this process.
//
// It starts private servers of the installed programs and leaves nothing
// running. The measure is the ratio; absolute figures are told and judge nothing.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	rows    string
	quick   bool
	out     string
	profile string
	dir     string
	source  string
	length  time.Duration // no round is longer; 0: as it should be
	jobs    int           // none has more; 0: as it should be
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.rows, "rows", "", "rows to run, as in B1,B4 (empty: all)")
	flags.BoolVar(&o.quick, "quick", false, "short rounds of the rows that show most; the figures are rough")
	flags.StringVar(&o.out, "out", "", "folder for latest.json, latest.svg and latest.md, in which rows that are not run keep their figures (empty: write none)")
	flags.StringVar(&o.profile, "profile", "", "folder for CPU, mutex and block profiles of flexiqd, a set per scenario")
	flags.StringVar(&o.dir, "dir", "", "folder on a real disk for the servers' data (empty: the system's temporary folder)")
	flags.StringVar(&o.source, "source", "..", "folder of FlexiQ's source, to build flexiqd from")
	flags.DurationVar(&o.length, "length", 0, "bound of a round's length, to try the program (0: none)")
	flags.IntVar(&o.jobs, "jobs", 0, "bound of the jobs in a round, to try the program (0: none)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(rows, o.rows, o.quick)
	if err != nil {
		return err
	}
	e, err := newEnv(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	limited, cancel := context.WithTimeoutCause(ctx, total, errors.New("the time for all rows is over"))
	defer cancel()
	results := e.runRows(limited, chosen)
	writeTable(stdout, results)
	r := newReport(ctx, o, results)
	if o.out != "" {
		if err := r.keep(o.out, chosen); err != nil {
			return err
		}
		if err := r.write(o.out); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "\nwritten to %s\n", filepath.Join(o.out, "latest.json"))
	}
	return failures(results)
}

// total bounds a run of all rows.
const total = 40 * time.Minute

// row is a line of the table of goals: some scenarios that share their setting.
type row struct {
	id    string
	title string
	limit time.Duration // the row is given up after so long
	quick bool          // is part of a quick run
	run   func(ctx context.Context, e *env, b *board) error
}

// longRow is how long a row may take without being one of the longest.
const longRow = 10 * time.Minute

// choose picks rows by their ids.
func choose(all []row, ids string, quick bool) ([]row, error) {
	if ids == "" {
		some := slices.DeleteFunc(slices.Clone(all), func(r row) bool { return quick && !r.quick })
		// The longest comes last: when the time for all is over, it is over there.
		slices.SortStableFunc(some, func(a, b row) int { return cmp.Compare(a.limit/longRow, b.limit/longRow) })
		return some, nil
	}
	var chosen []row
	for id := range strings.SplitSeq(ids, ",") {
		i := slices.IndexFunc(all, func(r row) bool { return strings.EqualFold(r.id, strings.TrimSpace(id)) })
		if i < 0 {
			return nil, fmt.Errorf("there is no row %q", id)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// runRows runs the rows one after the other. One that fails is reported and
// does not stop the others.
func (e *env) runRows(ctx context.Context, chosen []row) []result {
	var all []result
	for _, r := range chosen {
		if ctx.Err() != nil {
			all = append(all, result{ID: r.id, Title: r.title, Error: fmt.Sprintf("not begun: %v", context.Cause(ctx))})
			continue
		}
		start := time.Now()
		e.log("%s %s", r.id, r.title)
		b := &board{row: r.id, log: e.log}
		err := e.runRow(ctx, r, b)
		if err != nil {
			e.log("%s failed: %v", r.id, err)
			b.results = append(b.results, result{ID: r.id, Title: r.title, Error: err.Error()})
		}
		all = append(all, b.results...)
		e.log("%s took %s", r.id, time.Since(start).Round(time.Second))
	}
	return all
}

// runRow runs one row within its time and gives back what it opened.
func (e *env) runRow(ctx context.Context, r row, b *board) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	inner := &env{opts: e.opts, dir: e.dir, flexiqd: e.flexiqd, log: e.log}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- r.run(ctx, inner, b)
	}()
	const grace = 30 * time.Second
	select {
	case err = <-done:
	case <-time.After(r.limit + grace):
		return fmt.Errorf("did not end within %s", r.limit+grace)
	}
	return errors.Join(err, inner.undo())
}
