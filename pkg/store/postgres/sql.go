package postgres

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// stmt is a statement of this package. Its text names tables in the schema
// flexiq; a store has each text in its own schema.
type stmt int

var texts []string

// statement registers a text. It is called while the package is initialised.
func statement(text string) stmt {
	texts = append(texts, text)
	return stmt(len(texts) - 1)
}

// qualify puts the name of the schema into all statements.
func qualify(schema string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = inSchema(text, schema)
	}
	return out
}

func inSchema(text, schema string) string {
	if schema == defaultSchema {
		return text
	}
	return strings.ReplaceAll(text, "flexiq.", pgx.Identifier{schema}.Sanitize()+".")
}

const (
	lockTimeout   = 2 * time.Second        // for the lock of a namespace
	neighbourWait = 500 * time.Millisecond // the same, while units of other namespaces wait for the answer
	leastWait     = 10 * time.Millisecond  // the same, when that was waited in vain
	stuckFor      = 5 * time.Second        // how long to remember that
	idleTime      = 5 * time.Minute        // after which the pool gives up a connection
)

// setting is a server setting that every transaction of a store has.
type setting struct{ name, value string }

// settings leave the planner one way to run each statement, and make the
// server end what this program cannot: a statement that runs too long, and the
// transaction of a process that stopped in the middle of it.
func settings(timeout time.Duration) []setting {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return []setting{
		{"statement_timeout", ms(timeout)},
		{"lock_timeout", ms(lockTimeout)},
		{"idle_in_transaction_session_timeout", ms(timeout)},
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_seqscan", "off"},
		{"enable_bitmapscan", "off"},
		{"enable_hashjoin", "off"},
		{"enable_mergejoin", "off"},
		{"jit", "off"},
	}
}

func setForSession(config *pgx.ConnConfig, timeout time.Duration) {
	for _, s := range settings(timeout) {
		config.RuntimeParams[s.name] = s.value
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "flexiq"
	}
}

func setLocally(timeout time.Duration) string {
	var calls []string
	for _, s := range settings(timeout) {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', true)", s.name, s.value))
	}
	return "select " + strings.Join(calls, ", ")
}
