// Package migration knows the numbered steps by which a backend's schema came to
// be, and what a program may do with a schema that others have changed.
//
// A step is a file NNNN_name.sql, numbered from 0001 without gaps. Its head says
// why it is there and which programs may go on using the schema after it:
//
//	-- Reason: the reason, over as many
//	-- lines as it takes, up to an empty one.
//	--
//	-- oldest program: 1
//
// A program's version, in the sense of a schema, is the number of the last step
// that it knows. A step that can be taken back without losing anything has a
// second file, NNNN_name.down.sql. The package runs no SQL.
package migration

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// Step is one numbered change of a schema.
type Step struct {
	Version int64
	Name    string
	Reason  string
	Oldest  int64 // the oldest program that may use the schema from then on
	SQL     string
	Down    string // empty: the step cannot be taken back
}

// Steps are a schema's, from the first on.
type Steps []Step

var (
	fileName      = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)(\.down)?\.sql$`)
	oldestProgram = regexp.MustCompile(`(?m)^-- oldest program: (\d+)$`)
	reason        = regexp.MustCompile(`(?m)^-- Reason: (.+(?:\n-- .+)*)$`)
)

// Load reads the steps in a folder. It refuses files that are named or numbered
// otherwise, and steps that give no reason or no oldest program.
func Load(files fs.FS, dir string) (Steps, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, err
	}
	var steps Steps
	downs := make(map[string]string)
	for _, e := range entries {
		m := fileName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("migration %s: the name must be like 0001_name.sql", e.Name())
		}
		text, err := fs.ReadFile(files, dir+"/"+e.Name())
		if err != nil {
			return nil, err
		}
		if m[3] != "" {
			downs[m[1]+"_"+m[2]] = string(text)
			continue
		}
		version, _ := strconv.ParseInt(m[1], 10, 64) // digits by the pattern
		s, err := parse(version, m[2], string(text))
		if err == nil && version != int64(len(steps)+1) {
			err = fmt.Errorf("the number must be %04d", len(steps)+1)
		}
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", e.Name(), err)
		}
		steps = append(steps, s)
	}
	for i := range steps {
		key := fmt.Sprintf("%04d_%s", steps[i].Version, steps[i].Name)
		steps[i].Down = downs[key]
		delete(downs, key)
	}
	for key := range downs {
		return nil, fmt.Errorf("migration %s.down.sql: there is no step of this name", key)
	}
	if len(steps) == 0 {
		return nil, errors.New("there is no migration")
	}
	return steps, nil
}

func parse(version int64, name, text string) (Step, error) {
	oldest, why := oldestProgram.FindStringSubmatch(text), reason.FindStringSubmatch(text)
	if oldest == nil || why == nil {
		return Step{}, errors.New(`the head must have lines "-- Reason: …" and "-- oldest program: N"`)
	}
	n, err := strconv.ParseInt(oldest[1], 10, 64)
	if err != nil || n > version {
		return Step{}, fmt.Errorf("the oldest program %s does not exist yet", oldest[1])
	}
	return Step{Version: version, Name: name, Oldest: n, SQL: text, Reason: strings.ReplaceAll(why[1], "\n-- ", " ")}, nil
}

// MustLoad is [Load] for files that are part of the program.
func MustLoad(files fs.FS, dir string) Steps {
	steps, err := Load(files, dir)
	if err != nil {
		panic(err)
	}
	return steps
}

// Program is the version of a program that knows these steps.
func (s Steps) Program() int64 { return s[len(s)-1].Version }

// After are the steps that a schema of the given version misses.
func (s Steps) After(version int64) Steps {
	return s[min(max(version, 0), s.Program()):]
}

// Check tells whether a program that knows these steps must first apply those
// that a schema misses. The schema's version is 0 when there is none. It is an
// error when the program must not use the schema, or must migrate and may not.
func (s Steps) Check(version, oldest int64, migrating bool) (migrate bool, err error) {
	switch program := s.Program(); {
	case oldest > program:
		return false, fmt.Errorf("the store has schema %d, which needs a program of version %d or newer; this one has version %d: upgrade it",
			version, oldest, program)
	case version >= program:
		return false, nil
	case !migrating && version == 0:
		return false, errors.New("the store has no schema and migrations are off: run flexiqd migrate up")
	case !migrating:
		return false, fmt.Errorf("the store has schema %d, this program needs %d and migrations are off: run flexiqd migrate up", version, program)
	}
	return true, nil
}

// Last is the step to take back from a schema of the given version. It is an
// error when that cannot be done, or would delete data.
func (s Steps) Last(version int64) (Step, error) {
	switch {
	case version <= 0:
		return Step{}, errors.New("the store has no schema: there is no step to take back")
	case version > s.Program():
		return Step{}, fmt.Errorf("the store has schema %d, and this program knows %d: use the program that applied the step", version, s.Program())
	}
	step := s[version-1]
	switch {
	case step.Down != "":
		return step, nil
	case version == 1:
		return Step{}, errors.New("the first step made the tables: taking it back would delete every job; drop the store yourself if that is meant")
	}
	return Step{}, fmt.Errorf("step %d (%s) has no way back, because undoing it would lose data: to go back, restore a backup from before it", step.Version, step.Name)
}

// Status is where a store's schema stands.
type Status struct {
	Version int64 // 0: there is no schema
	Oldest  int64 // the oldest program that may use it, 0 without one
	Program int64 // the version of this program
	Steps   Steps // those that this program knows; the first Version of them are applied
}

// Status is that of a schema under these steps.
func (s Steps) Status(version, oldest int64) Status {
	return Status{Version: version, Oldest: oldest, Program: s.Program(), Steps: s}
}

// Applied reports whether the schema has a step.
func (s Status) Applied(step Step) bool { return step.Version <= s.Version }
