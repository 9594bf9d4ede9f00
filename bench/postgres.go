package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// database is a server that both entrants of a scenario use.
type database interface {
	pid() int
	// quiesce writes out what an earlier round left behind.
	quiesce(ctx context.Context) error
}

// postgres is a private PostgreSQL server, durable as by default. What is set
// beside the defaults is what every installation sets that is in earnest.
type postgres struct {
	*process
	port string
	conn *pgx.Conn // for readings
}

func (e *env) startPostgres(ctx context.Context) (*postgres, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(e.dir, "postgres-")
	if err != nil {
		return nil, err
	}
	if as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			return nil, err
		}
	}
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, program), args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := command("initdb", "-D", data, "-U", "bench", "-E", "UTF8", "--locale=C", "-A", "trust").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	p := &postgres{}
	if p.port, err = freePort(); err != nil {
		return nil, err
	}
	p.process, err = startProcess(command("postgres", "-D", data, "-p", p.port, "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "max_connections=300", "-c", "shared_buffers=1GB", "-c", "fsync=on",
		"-c", "synchronous_commit=on", "-c", "max_wal_size=8GB", "-c", "checkpoint_timeout=15min", "-c", "log_min_messages=fatal"))
	if err != nil {
		return nil, err
	}
	e.later(func() error {
		if p.conn != nil {
			_ = p.conn.Close(context.WithoutCancel(ctx)) // the server ends next
		}
		return errors.Join(p.stop(syscall.SIGQUIT), os.RemoveAll(dir))
	})
	return p, p.await(ctx, "postgres", time.Minute, func() (err error) {
		p.conn, err = pgx.Connect(ctx, p.url("postgres"))
		return err
	})
}

// postgresPrograms finds the folder of the newest installed server.
func postgresPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int {
			if len(a) != len(b) { // 9 is older than 15
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		})), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("PostgreSQL's server programs are not installed")
	}
	path, err = filepath.EvalSymlinks(path)
	return filepath.Dir(path), err
}

func (p *postgres) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("bench"), Host: "127.0.0.1:" + p.port, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

func (p *postgres) pid() int { return p.cmd.Process.Pid }

// create makes a database.
func (p *postgres) create(ctx context.Context, name string) error {
	_, err := p.conn.Exec(ctx, "create database "+name)
	return err
}

func (p *postgres) quiesce(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "checkpoint")
	return err
}

// written is how much the server has written ahead, in bytes, and how many
// transactions it has committed.
func (p *postgres) written(ctx context.Context) (bytes, commits int64, err error) {
	err = p.conn.QueryRow(ctx, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		(select sum(xact_commit) from pg_stat_database)::bigint`).Scan(&bytes, &commits)
	return bytes, commits, err
}
