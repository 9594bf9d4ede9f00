package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// globals are the flags of every command.
type globals struct {
	Output  string `help:"How to print results: table or json." enum:"table,json" default:"table"`
	As      string `help:"Act for this namespace, with a platform token." placeholder:"NAMESPACE"`
	Context string `help:"Use this context instead of the current one." placeholder:"NAME"`
	Server  string `help:"Server address: nats://…, tls://…, http://… or https://…." placeholder:"URL"`
	CAFile  string `name:"ca-file" help:"CA certificates (PEM) by which the server is known; the system's by default." placeholder:"FILE"`
}

// commands is the whole command line.
type commands struct {
	globals

	Enqueue    enqueueCmd    `cmd:"" help:"Enqueue jobs."`
	Work       workCmd       `cmd:"" help:"Run jobs with a command."`
	Jobs       jobsCmd       `cmd:"" help:"Read, cancel and await jobs."`
	Dead       deadCmd       `cmd:"" help:"Read, replay and delete dead letters."`
	Schedules  schedulesCmd  `cmd:"" help:"Enqueue jobs by the clock."`
	Triggers   triggersCmd   `cmd:"" help:"Let requests from outside enqueue jobs."`
	Quota      quotaCmd      `cmd:"" help:"Read and change the quota of the namespace."`
	Usage      usageCmd      `cmd:"" help:"Show what the namespace holds beside its limits."`
	Explain    explainCmd    `cmd:"" help:"Say why a job, a call or the namespace waits or is refused."`
	Queues     queuesCmd     `cmd:"" help:"List queues: what waits and runs, and for how long."`
	Workers    workersCmd    `cmd:"" help:"List workers: where they take from, their slots and what they hold."`
	Overrides  overridesCmd  `cmd:"" help:"Cap, pause and set defaults for queues and tasks."`
	Events     eventsCmd     `cmd:"" help:"Show what happens in the namespace, until interrupted."`
	Tokens     tokensCmd     `cmd:"" help:"Create, list and revoke tokens."`
	Settings   settingsCmd   `cmd:"" help:"Keep values for the namespace under keys."`
	Audit      auditCmd      `cmd:"" help:"Read the audit trail."`
	Namespaces namespacesCmd `cmd:"" help:"Read and delete the namespaces of the installation."`
	Contexts   contextCmd    `cmd:"" name:"context" help:"Keep servers and tokens under names."`
}

// session is one run of the program: what commands work with.
type session struct {
	globals
	ctx context.Context
	env func(string) string
	in  io.Reader
	out io.Writer
	err io.Writer

	patience time.Duration // with answers, once ctx has ended
}

// usageError is a wrong use of the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// misuse is a usage error when err is of what the caller named: a context that
// is not there or is another's, a token or an address that cannot be one.
func misuse(err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f) && f.Reason == fault.InvalidRequest:
		return usageError{f.Message}
	case errors.Is(err, client.ErrNoContext), errors.Is(err, client.ErrContextTaken):
		return usageError{err.Error()}
	}
	return err
}

// errTold ends with exit code 1 when everything has been said already.
var errTold = errors.New("told already")

// exited carries the exit code out of kong, which knows only os.Exit.
type exited int

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, env func(string) string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			code = int(p)
		default:
			panic(p)
		}
	}()
	var c commands
	parser, err := kong.New(&c,
		kong.Name("fq"),
		kong.Description("Producers, workers and operators of FlexiQ, a job queue with quotas."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		durations(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "fq: %v\n", err)
		return exitError
	}
	chosen, err := parser.Parse(args)
	s := &session{globals: c.globals, ctx: ctx, env: env, in: stdin, out: stdout, err: stderr, patience: answerPatience}
	if err != nil {
		if s.Output == "" {
			s.Output = wantedOutput(args)
		}
		return s.report(usageError{err.Error()})
	}
	return s.report(chosen.Run(s))
}

// wantedOutput finds --output in a command line that could not be parsed.
func wantedOutput(args []string) string {
	for i, a := range args {
		if a == "--output=json" || a == "--output" && i+1 < len(args) && args[i+1] == "json" {
			return "json"
		}
	}
	return "table"
}

func (s *session) json() bool { return s.Output == "json" }

// report tells an error and chooses the exit code.
func (s *session) report(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errTold):
		return exitError
	case errors.As(err, &usage):
		s.misused(usage.text)
		return exitUsage
	}
	var f *fault.Error
	if !errors.As(err, &f) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		s.failed(err)
		return exitError
	}
	s.complain(told(err))
	return exitError
}

// local is the reason of an error that is not of the server: of a file, a pipe,
// the command's own.
const local fault.Reason = "LOCAL"

func (s *session) failed(err error) {
	if s.json() {
		writeFault(s.err, fault.New(local, "%v", err))
		return
	}
	s.remark("%v", err)
}

// codeOf is the code of a reason, also of those that no server knows.
func codeOf(r fault.Reason) fault.Code {
	switch r {
	case client.Unreachable:
		return "UNAVAILABLE"
	case local:
		return "UNKNOWN"
	}
	return r.Code()
}

// summaryOf is a fault on one line.
func summaryOf(f *fault.Error) string {
	if code := codeOf(f.Reason); string(code) != string(f.Reason) {
		return fmt.Sprintf("%s %s: %s", code, f.Reason, f.Message)
	}
	return string(f.Reason) + ": " + f.Message
}

// complain prints a fault on standard error: for people, or as the same JSON
// that NATS callers get.
func (s *session) complain(f *fault.Error) {
	if s.json() {
		writeFault(s.err, f)
		return
	}
	s.remark("%s", summaryOf(f))
	printDetails(s.err, unsaid(f))
}

// unsaid are the details that the message does not begin with already.
func unsaid(f *fault.Error) map[string]string {
	field, ok := f.Details[fault.KeyField]
	if !ok || !strings.HasPrefix(f.Message, field+": ") {
		return f.Details
	}
	rest := maps.Clone(f.Details)
	delete(rest, fault.KeyField)
	return rest
}

// misused tells of a wrong command line.
func (s *session) misused(text string) {
	if s.json() {
		writeFault(s.err, fault.New(fault.InvalidRequest, "%s", text))
		return
	}
	s.remark("%s", text)
}

// remark tells something on standard error that is no error.
func (s *session) remark(format string, args ...any) {
	fmt.Fprintf(s.err, "fq: %s\n", clean(fmt.Sprintf(format, args...)))
}

// actingLife is how long a client of --as is used: its token lives for 5
// minutes by the server's clock.
const actingLife = 4 * time.Minute

// need says which token a command wants, when the context has several.
type need int

const (
	ofNamespace need = iota
	ofPlatform
)

// target resolves the server and the token.
func (s *session) target(n need) (client.Options, error) {
	c, err := client.UserContexts(s.env).Resolve(s.env, s.Context)
	if err != nil {
		return client.Options{}, misuse(err)
	}
	o := client.Options{Server: c.Server, Token: c.Token, CAFile: c.CAFile, Name: "fq"}
	if s.Server != "" {
		o.Server, o.CAFile = s.Server, s.env(client.EnvCAFile)
	}
	if s.CAFile != "" {
		o.CAFile = s.CAFile
	}
	if (n == ofPlatform || s.As != "") && c.PlatformToken != "" {
		o.Token = c.PlatformToken
	}
	return o, nil
}

// dial connects as the globals say, for the namespace of --as if there is one.
func (s *session) dial(n need) (*client.Client, func(), error) {
	o, err := s.target(n)
	if err != nil {
		return nil, nil, err
	}
	if s.As != "" {
		if o.Token, err = s.exchange(o); err != nil {
			return nil, nil, err
		}
	}
	c, err := client.Dial(s.ctx, o)
	if err != nil {
		return nil, nil, misuse(err)
	}
	return c, func() { s.hangUp(c) }, nil
}

// exchange trades the platform token for one of the namespace.
func (s *session) exchange(o client.Options) (string, error) {
	c, err := client.Dial(s.ctx, o)
	if err != nil {
		return "", misuse(err)
	}
	defer s.hangUp(c)
	res, err := c.Admin().ExchangeToken(s.ctx, s.As)
	return res.GetToken(), err
}

func (s *session) hangUp(c *client.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 3*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		s.remark("the connection was closed before everything was answered")
	}
}

// environ is the environment that commands of jobs inherit.
func (s *session) environ() []string { return os.Environ() }

// terminal reports whether a stream is a person's screen or keyboard.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
