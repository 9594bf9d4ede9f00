package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"flexiq/pkg/store/migration"
)

// migrateCommand looks at the steps of the store's schema and takes them.
type migrateCommand struct {
	Up     upCommand     `cmd:"" help:"Create the store, or bring it up to this program."`
	Status statusCommand `cmd:"" help:"Show which steps the store has and which it misses."`
	Down   downCommand   `cmd:"" help:"Take the last step back, if it has a way back (see status)."`
}

type (
	upCommand     struct{ storeFlags }
	statusCommand struct{ storeFlags }
	downCommand   struct{ storeFlags }
)

// backend is the one that the options name.
func (c *storeFlags) backend(migrate bool) (backend, error) {
	if err := c.complete(); err != nil {
		return backend{}, err
	}
	return storeOptions{url: c.Store, pgSchema: c.PGSchema, migrate: migrate}.backend()
}

// Run is called by kong.
func (c *upCommand) Run(ctx context.Context, io stdio) error {
	b, err := c.backend(true)
	if err != nil {
		return err
	}
	s, err := b.open(ctx, zerolog.New(io.err).Level(zerolog.WarnLevel).With().Timestamp().Logger())
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	status, err := b.status(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(io.out, "the store has version %d\n", status.Version)
	return err
}

// Run is called by kong.
func (c *statusCommand) Run(ctx context.Context, io stdio) error {
	b, err := c.backend(false)
	if err != nil {
		return err
	}
	status, err := b.status(ctx)
	if err != nil {
		return err
	}
	return writeStatus(io.out, status)
}

// Run is called by kong.
func (c *downCommand) Run(ctx context.Context, io stdio) error {
	b, err := c.backend(false)
	if err != nil {
		return err
	}
	step, err := b.down(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(io.out, "took back step %d (%s); the store has version %d\n", step.Version, step.Name, step.Version-1)
	return err
}

func writeStatus(w io.Writer, s migration.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "version of the store\t%d\n", s.Version)
	fmt.Fprintf(t, "oldest program that may use it\t%d\n", s.Oldest)
	fmt.Fprintf(t, "version of this program\t%d\n", s.Program)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t, "\nSTEP\tNAME\tSTATE\tWAY BACK\tREASON")
	for _, step := range s.Steps {
		state := "missing"
		if s.Applied(step) {
			state = "applied"
		}
		back := "no"
		if step.Down != "" {
			back = "yes"
		}
		fmt.Fprintf(t, "%04d\t%s\t%s\t%s\t%s\n", step.Version, step.Name, state, back, step.Reason)
	}
	return t.Flush()
}
