package testkit

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresVariable names the environment variable with the URL of a PostgreSQL
// server for tests, whose user may create schemas.
const PostgresVariable = "FLEXIQ_TEST_POSTGRES"

const (
	postgresStart = 30 * time.Second
	postgresStop  = 20 * time.Second
)

var shared struct {
	once   sync.Once
	url    string
	err    error
	server *PostgresServer // nil when it was there before
}

// Postgres returns the URL of a PostgreSQL server: the one of
// FLEXIQ_TEST_POSTGRES, else one that answers on the usual port of the
// loopback, else a private one for this test binary, made from the installed programs.
// Without any the test fails. A binary that uses it calls [StopPostgres] at its end.
func Postgres(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.url, shared.err = findPostgres() })
	if shared.err != nil {
		t.Fatalf("no PostgreSQL server: %v\nset %s, or install PostgreSQL's server programs", shared.err, PostgresVariable)
	}
	return shared.url
}

// StopPostgres stops the private server of [Postgres], if one was started.
func StopPostgres() {
	if shared.server != nil {
		shared.server.remove()
	}
}

// PostgresSchema returns the URL of a server and the name of a schema that does
// not exist, and drops that schema with all that is in it when the test ends.
func PostgresSchema(t testing.TB) (url, schema string) {
	t.Helper()
	url = Postgres(t)
	schema = "flexiq_test_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
		defer cancel()
		if err := postgresExec(ctx, url, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); err != nil {
			t.Errorf("drop schema %s: %v", schema, err)
		}
	})
	return url, schema
}

func postgresExec(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func findPostgres() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
	defer cancel()
	if url := os.Getenv(PostgresVariable); url != "" {
		return url, postgresExec(ctx, url, "select 1")
	}
	const usual = "postgres://postgres@127.0.0.1:5432/postgres?connect_timeout=2"
	if postgresExec(ctx, usual, "select 1") == nil {
		return usual, nil
	}
	s, err := newPostgres()
	if err != nil {
		return "", err
	}
	shared.server = s
	return s.URL(), nil
}

// PostgresServer is a private server, for tests that stop it.
type PostgresServer struct {
	bin, dir, password string
	port               int
	as                 *syscall.Credential // nil: as this process
	cmd                *exec.Cmd
	exited             chan error
	output             *lockedBuffer
}

// StartPostgres starts a server of the test's own, which ends with the test.
func StartPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	s, err := newPostgres()
	if err != nil {
		t.Fatalf("no private PostgreSQL server: %v", err)
	}
	t.Cleanup(s.remove)
	return s
}

// newPostgres makes a cluster and starts its server.
func newPostgres() (_ *PostgresServer, err error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{bin: bin, password: rand.Text()}
	if os.Getuid() == 0 { // initdb refuses to be run by root
		if s.as, err = postgresUser(); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp("", "flexiq-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	if err := s.initialise(); err != nil {
		return nil, err
	}
	return s, s.Start()
}

// postgresPrograms finds the folder of the newest installed server.
func postgresPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	slices.SortFunc(found, func(a, b string) int {
		version := func(path string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // another name sorts first
			return n
		}
		return version(a) - version(b)
	})
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("nothing answers on 127.0.0.1:5432 and no server programs are installed")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}

func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("tests run as root and initdb needs another user: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}, nil
}

func (s *PostgresServer) initialise() error {
	secret := filepath.Join(s.dir, "password")
	if err := os.WriteFile(secret, []byte(s.password), 0o600); err != nil {
		return err
	}
	if s.as != nil {
		for _, path := range []string{s.dir, secret} {
			if err := os.Chown(path, int(s.as.Uid), int(s.as.Gid)); err != nil {
				return err
			}
		}
	}
	out, err := s.command("initdb", "-D", s.data(), "-U", "flexiq", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "--pwfile", secret, "-N").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

func (s *PostgresServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

// URL is where the server answers.
func (s *PostgresServer) URL() string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("flexiq", s.password), Path: "/postgres",
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Start starts the server, on the port that it had before, if any.
func (s *PostgresServer) Start() error {
	if s.port == 0 {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.port = port
	}
	s.cmd = s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "max_connections=300", "-c", "shared_buffers=128MB", "-c", "fsync=on",
		"-c", "checkpoint_timeout=1h", "-c", "max_wal_size=4GB", "-c", "log_min_messages=fatal")
	s.output = &lockedBuffer{}
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	dieWithParent(s.cmd.SysProcAttr)
	started := make(chan error)
	s.exited = make(chan error, 1)
	go func() {
		// The parent whose end the server is told of is this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.exited <- s.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	return s.await()
}

// await waits until the server answers.
func (s *PostgresServer) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
	defer cancel()
	for {
		err := postgresExec(ctx, s.URL(), "select 1")
		if err == nil {
			return nil
		}
		select {
		case gone := <-s.exited:
			s.exited <- gone
			return fmt.Errorf("the server ended: %v\n%s", gone, s.output)
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w\n%s", err, s.output)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Crash stops the server at once, as a failing host would: no session is
// waited for and nothing is written that was not.
func (s *PostgresServer) Crash() error { return s.stop(syscall.SIGQUIT) }

// Stop stops the server in order, after ending its sessions.
func (s *PostgresServer) Stop() error { return s.stop(syscall.SIGINT) }

func (s *PostgresServer) stop(how syscall.Signal) error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-s.exited:
		s.exited <- err
		return nil
	case <-time.After(postgresStop):
		return fmt.Errorf("the server with pid %d does not stop\n%s", s.cmd.Process.Pid, s.output)
	}
}

// remove stops the server and deletes its folder.
func (s *PostgresServer) remove() {
	if err := s.stop(syscall.SIGQUIT); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// lockedBuffer keeps what a server writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
