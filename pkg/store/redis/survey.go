package redis

import (
	"context"
	"slices"
	"sync"
	"time"
)

// surveyEvery is how often a process looks for running jobs everywhere.
const surveyEvery = time.Minute

// survey is what a handle knows for its next look at everything.
type survey struct {
	mu   sync.Mutex
	last time.Time
	used map[string]struct{} // namespaces that it met since
}

// met notes that this handle worked in a namespace.
func (v *survey) met(ns string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.used == nil {
		v.used = make(map[string]struct{})
	}
	v.used[ns] = struct{}{}
}

// due reports whether it is time for a look, and takes what was met. It is put
// back when the look fails.
func (v *survey) due() (names []string, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.last.IsZero() && time.Since(v.last) < surveyEvery {
		return nil, false
	}
	v.last = time.Now()
	for ns := range v.used {
		names = append(names, ns)
	}
	clear(v.used)
	return names, true
}

func (v *survey) failed(names []string) {
	for _, ns := range names {
		v.met(ns)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = time.Time{}
}

// surveyDue puts the installation's lists in order, once in a while. Namespaces
// leave them that were erased. And they may have
// been lost with a server whose copy was behind: what this handle worked in is
// registered again, and whatever has running jobs is put among the busy ones.
func (s *Store) surveyDue(ctx context.Context) error {
	names, due := s.survey.due()
	if !due {
		return nil
	}
	err := s.everywhere(ctx, names)
	if err != nil {
		s.survey.failed(names)
	}
	return err
}

func (s *Store) everywhere(ctx context.Context, mine []string) error {
	for part := range slices.Chunk(mine, atOnce) {
		if _, _, err := s.register(ctx, part, false, false); err != nil {
			return err
		}
	}
	if err := s.forgetErased(ctx); err != nil {
		return err
	}
	return s.eachKnown(ctx, func(names []string) error { return s.look(ctx, names) })
}

// look puts those namespaces among the busy ones that have running jobs.
func (s *Store) look(ctx context.Context, names []string) error {
	running, listed := make([]*command, len(names)), make([]*command, len(names))
	for i, ns := range names {
		running[i] = plain("exists", s.key(tag(ns), "running"))
		listed[i] = plain("zscore", s.key(installation, "busy"), ns)
	}
	if err := s.run(ctx, again, slices.Concat(running, listed)...); err != nil {
		return err
	}
	var missing []string
	for i, ns := range names {
		if running[i].int() > 0 && listed[i].reply == nil {
			missing = append(missing, ns)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, numbers, err := s.register(ctx, missing, true, false)
	if err != nil {
		return err
	}
	marks := make([]*command, len(missing))
	for i, ns := range missing {
		marks[i] = s.on(tag(ns), busyScript, numbers[i])
	}
	return s.run(ctx, again, marks...)
}
