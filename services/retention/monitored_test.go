package retention

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// monitored makes a ledger from what a Redis server says that it does.
type monitored struct {
	base   string // with which the keys begin, up to the namespace's tag
	index  string // of the table, by finished time
	trim   int64  // term of the trim that is carried out
	spaces map[string]*monitoredSpace
	ledger ledger
}

// monitoredSpace is what is known of a namespace's rows.
type monitoredSpace struct {
	tally
	newest int64   // term that it has heard of
	order  []entry // its rows, the oldest first
}

type entry struct {
	at float64
	id string
}

func byAge(a, b entry) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) }

func newMonitored(base, index string) *monitored {
	return &monitored{base: base, index: index, spaces: map[string]*monitoredSpace{}, ledger: ledger{rows: map[int64]int64{}}}
}

// hear takes one line, of which the words stand in quotes:
//
//	1764601200.123456 [0 lua] "ZREM" "{ns}:died" "id" "id"
func (m *monitored) hear(line string) {
	_, said, ok := strings.Cut(line, "] ")
	if !ok || !strings.Contains(said, m.base) {
		return
	}
	if w := words(said); strings.HasPrefix(strings.ToUpper(w[0]), "EVAL") {
		if len(w) > 7 && strings.HasSuffix(w[3], "}:ns") && w[7] == m.index {
			m.trim, _ = strconv.ParseInt(w[6], 10, 64) // a trim: its time, field, term, table
		}
	} else if len(w) > 2 {
		m.does(strings.ToUpper(w[0]), w[1], w[2:])
	}
}

// does takes one command on one key.
func (m *monitored) does(command, key string, args []string) {
	tag, name, ok := strings.Cut(strings.TrimPrefix(key, m.base), "}:")
	if !ok {
		return
	}
	s := m.spaces[tag]
	if s == nil {
		s = newMonitoredSpace()
		m.spaces[tag] = s
	}
	switch {
	case command == "HSET" && name == "ns":
		if i := slices.Index(args, "term"); i >= 0 {
			term, _ := strconv.ParseInt(args[i+1], 10, 64)
			s.newest = max(s.newest, term)
		}
	case command == "ZADD" && name == m.index:
		for pair := range slices.Chunk(args, 2) {
			at, _ := strconv.ParseFloat(pair[0], 64)
			s.add(entry{at, pair[1]})
		}
	case command == "ZREM" && name == m.index:
		s.remove(args)
		n := int64(len(args))
		m.ledger.rows[s.newest] += n
		m.ledger.most = max(m.ledger.most, n)
		if m.trim != s.newest {
			m.ledger.stray += n
		}
	}
}

func newMonitoredSpace() *monitoredSpace { return &monitoredSpace{tally: tally{fewest: math.MaxInt64}} }

func (s *monitoredSpace) read() tally {
	y := s.tally
	y.left = int64(len(s.order))
	return y
}

func (s *monitoredSpace) add(e entry) {
	i := len(s.order)
	if i > 0 && byAge(s.order[i-1], e) > 0 {
		i, _ = slices.BinarySearchFunc(s.order, e, byAge)
	}
	s.order = slices.Insert(s.order, i, e)
}

func (s *monitoredSpace) remove(ids []string) {
	for _, id := range ids {
		if s.order[0].id == id {
			s.order = s.order[1:]
			continue
		}
		s.disorder++
		s.order = slices.DeleteFunc(s.order, func(e entry) bool { return e.id == id })
	}
	s.fewest = min(s.fewest, int64(len(s.order)))
}

// words unquotes the words of a line.
func words(said string) (out []string) {
	for said != "" {
		quoted, err := strconv.QuotedPrefix(said)
		if err != nil {
			return append(out, said)
		}
		word, _ := strconv.Unquote(quoted) // it is what QuotedPrefix accepted
		out = append(out, word)
		said = strings.TrimPrefix(said[len(quoted):], " ")
	}
	return out
}

// TestMonitored: the ledger tells a delete of an older term, and one out of
// order, from the others.
func TestMonitored(t *testing.T) {
	t.Parallel()
	m := newMonitored("p:{", "died")
	for _, line := range []string{
		`1.1 [0 127.0.0.1:1] "evalsha" "abc" "1" "p:{ns}:ns" "0" "quota:ns:2:ns" "3" "died" "" "0" "2" "0" "500"`,
		`1.1 [0 lua] "HSET" "p:{ns}:ns" "default" "0" "term" "3"`,
		`1.1 [0 lua] "ZADD" "p:{ns}:died" "1" "a" "2" "b" "4" "d\x00\"" "3" "c"`,
		`1.1 [0 lua] "ZREM" "p:{ns}:died" "a"`,
		`1.1 [0 lua] "ZREM" "other{ns}:died" "a"`,
		`1.1 [0 lua] "HSET" "p:{ns}:ns" "term" "4"`,
		`1.1 [0 lua] "ZREM" "p:{ns}:died" "c" "b"`,
	} {
		m.hear(line)
	}
	l := m.ledger
	if l.rows[3] != 1 || l.rows[4] != 2 || l.stray != 2 || l.most != 2 {
		t.Errorf("the ledger is %+v", l)
	}
	if s := m.spaces["ns"]; s.fewest != 1 || s.disorder != 1 || len(s.order) != 1 || s.order[0].id != "d\x00\"" {
		t.Errorf("the namespace is %+v", s)
	}
}
