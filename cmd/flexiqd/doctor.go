package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"flexiq/pkg/store"
)

// doctorCommand compares what the store keeps about its jobs with the jobs.
type doctorCommand struct {
	storeFlags
	Repair bool   `help:"Mend what is found. No job is deleted."`
	Output string `help:"Form of the answer (${enum})." enum:"table,json" default:"table"`
}

// errDrift ends the command with a status of its own kind; the findings say the rest.
var errDrift = errors.New("the store has drifted; flexiqd doctor --repair mends what can be mended")

// errLeft is errDrift after a repair.
var errLeft = errors.New("something is left that the repair could not mend")

// namespaceFinding is a finding as the command shows it.
type namespaceFinding struct {
	Namespace string       `json:"namespace"`
	Defect    store.Defect `json:"defect"`
	Where     string       `json:"where"`
	Kept      int64        `json:"kept"`
	Counted   int64        `json:"counted"`
	Mended    bool         `json:"mended"`
}

// checkup is the command's answer.
type checkup struct {
	Namespaces int                `json:"namespaces"`
	Findings   []namespaceFinding `json:"findings"`
}

// Run is called by kong.
func (c *doctorCommand) Run(ctx context.Context, io stdio) error {
	if err := c.complete(); err != nil {
		return err
	}
	log := zerolog.New(io.err).Level(zerolog.WarnLevel).With().Timestamp().Logger()
	s, err := openStore(ctx, storeOptions{url: c.Store, pgSchema: c.PGSchema}, log)
	if err != nil {
		return err
	}
	found, err := examineAll(ctx, s, c.Repair)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if err := found.write(io.out, c.Output == "json"); err != nil {
		return err
	}
	for _, f := range found.Findings {
		switch {
		case !c.Repair:
			return errDrift
		case !f.Mended:
			return errLeft
		}
	}
	return nil
}

// examineAll looks at every namespace. After a repair it looks again: what is
// still there was not mended.
func examineAll(ctx context.Context, s store.Store, repair bool) (checkup, error) {
	out := checkup{Findings: []namespaceFinding{}}
	for after := ""; ; {
		page, err := s.Namespaces(ctx, after, 1000)
		if err != nil {
			return out, err
		}
		for _, ns := range page.Items {
			found, err := examineOne(ctx, s, ns, repair)
			if err != nil {
				return out, fmt.Errorf("namespace %q: %w", ns, err)
			}
			out.Namespaces++
			out.Findings = append(out.Findings, found...)
		}
		if after = page.Next; after == "" {
			return out, nil
		}
	}
}

func examineOne(ctx context.Context, s store.Store, ns string, repair bool) ([]namespaceFinding, error) {
	found, err := s.Examine(ctx, ns, repair)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	left := found
	if repair {
		if left, err = s.Examine(ctx, ns, false); err != nil {
			return nil, err
		}
	}
	type place struct {
		defect store.Defect
		where  string
	}
	still := make(map[place]bool)
	var out []namespaceFinding
	add := func(f store.Finding, mended bool) {
		out = append(out, namespaceFinding{ns, f.Defect, f.Where, f.Kept, f.Counted, mended})
	}
	for _, f := range left {
		still[place{f.Defect, f.Where}] = true
		add(f, false)
	}
	for _, f := range found {
		if !still[place{f.Defect, f.Where}] {
			add(f, true)
		}
	}
	return out, nil
}

// write shows the findings as a table or as one JSON object.
func (c checkup) write(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(c)
	}
	if len(c.Findings) == 0 {
		noun := "namespaces"
		if c.Namespaces == 1 {
			noun = "namespace"
		}
		_, err := fmt.Fprintf(w, "nothing wrong in %d %s\n", c.Namespaces, noun)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAMESPACE\tDEFECT\tWHERE\tKEPT\tCOUNTED\tMENDED")
	for _, f := range c.Findings {
		mended := "no"
		if f.Mended {
			mended = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\n", printable(f.Namespace), f.Defect, printable(f.Where), f.Kept, f.Counted, mended)
	}
	return t.Flush()
}

// printable keeps a name that anybody may choose from steering the terminal.
func printable(s string) string {
	quoted := strconv.Quote(s)
	if quoted[1:len(quoted)-1] == s {
		return s
	}
	return quoted
}
