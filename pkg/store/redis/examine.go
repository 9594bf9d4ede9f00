package redis

import (
	"context"
	"slices"
	"strings"

	"flexiq/pkg/store"
)

// examineAtOnce is how many jobs or entries one script compares: few, because
// the server does nothing else meanwhile.
const examineAtOnce = 200

// Indexes of a namespace by what reads their members. The indexes of lanes and
// of ranks have keys of their own.
var (
	sortedIndexes = []string{"live", "running", "archive", "archived", "dead", "died", "shed", "debounce", "lanes", "ranks"}
	hashIndexes   = []string{"unique", "workers"}
)

// Examine implements [store.Upkeep]. A namespace is too large for one script, so
// it compares, and mends, some jobs or entries a step: each step sees jobs and
// indexes of one moment, and what one step mended stays when a later one fails.
// It looks through all keys of the server that has the namespace's.
func (s *Store) Examine(ctx context.Context, ns string, repair bool) ([]store.Finding, error) {
	e := &examiner{s: s, ns: ns, repair: repair, found: make(map[store.Finding]int64)}
	if err := e.examine(ctx); err != nil {
		return nil, s.fail(ctx, "examine", err)
	}
	return e.findings(), nil
}

// examiner gathers what is wrong in one namespace.
type examiner struct {
	s      *Store
	ns     string
	repair bool
	found  map[store.Finding]int64 // how often; the keys have no numbers
}

// examine looks at every job first, so that a lane that a job is missing from is
// there when the lanes are looked at.
func (e *examiner) examine(ctx context.Context) error {
	keys, err := e.keys(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{"j:", "b:", "r:", "p:"} {
		if err := e.compare(ctx, kind[:1], keys[kind]); err != nil {
			return err
		}
	}
	for _, kind := range []string{"p:", "f:"} {
		for _, n := range keys[kind] {
			if err := e.members(ctx, "zscan", kind+n); err != nil {
				return err
			}
		}
	}
	for _, name := range sortedIndexes {
		if err := e.members(ctx, "zscan", name); err != nil {
			return err
		}
	}
	for _, name := range hashIndexes {
		if err := e.members(ctx, "hscan", name); err != nil {
			return err
		}
	}
	return e.compare(ctx, "c", []string{""})
}

// keys lists the namespace's keys, each once, by their first two bytes.
func (e *examiner) keys(ctx context.Context) (map[string][]string, error) {
	prefix := e.s.key(tag(e.ns), "")
	node, err := e.s.node(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]string)
	for cursor := uint64(0); ; {
		keys, next, err := e.s.scan(ctx, node, cursor, prefix)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			if name := strings.TrimPrefix(k, prefix); len(name) > 2 {
				out[name[:2]] = append(out[name[:2]], name[2:])
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	for kind, names := range out { // the server may list a key twice
		slices.Sort(names)
		out[kind] = slices.Compact(names)
	}
	return out, nil
}

// members looks at the members of an index.
func (e *examiner) members(ctx context.Context, scan, name string) error {
	key := e.s.key(tag(e.ns), name)
	for cursor := "0"; ; {
		c := plain(scan, key, cursor, "count", examineAtOnce)
		if err := e.s.run(ctx, again, c); err != nil {
			return err
		}
		r := c.list()
		cursor = r.text()
		var members []string
		for pairs := r.list(); pairs.more(); pairs.next() { // the value or score is read again
			members = append(members, pairs.text())
		}
		if err := e.compare(ctx, name, members); err != nil || cursor == "0" || cursor == "" {
			return err
		}
	}
}

// compare runs the script on items of a kind. Repeating it does no harm.
func (e *examiner) compare(ctx context.Context, kind string, items []string) error {
	for part := range slices.Chunk(items, examineAtOnce) {
		args := []any{flag(e.repair), kind, len(part)}
		for _, i := range part {
			args = append(args, i)
		}
		c := e.s.on(tag(e.ns), examineScript, args...)
		if err := e.s.run(ctx, again, c); err != nil {
			return err
		}
		for r := c.list(); r.more(); {
			f := store.Finding{Defect: store.Defect(r.text()), Where: r.text()}
			e.found[f] += r.int()
		}
	}
	return nil
}

// findings are in the order of their texts.
func (e *examiner) findings() []store.Finding {
	var out []store.Finding
	for f, n := range e.found {
		if f.Defect == store.Missing || f.Defect == store.Broken {
			f.Counted = n
		} else {
			f.Kept = n
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b store.Finding) int {
		return strings.Compare(string(a.Defect)+a.Where, string(b.Defect)+b.Where)
	})
	return out
}
