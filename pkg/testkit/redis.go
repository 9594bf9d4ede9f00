package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisVariable names the environment variable with the URL of a Redis or Valkey
// server for tests.
const RedisVariable = "FLEXIQ_TEST_REDIS"

const (
	redisStart = 20 * time.Second
	redisStop  = 20 * time.Second
)

var sharedRedis struct {
	once   sync.Once
	url    string
	err    error
	server *RedisServer // nil when it was there before
}

// Redis returns the URL of a Redis or Valkey server: the one of
// FLEXIQ_TEST_REDIS, else one that answers on the usual port of the loopback,
// else a private one for this test binary, of the installed program. Without any
// the test fails. A binary that uses it calls [StopRedis] at its end.
func Redis(t testing.TB) string {
	t.Helper()
	sharedRedis.once.Do(func() { sharedRedis.url, sharedRedis.err = findRedis() })
	if sharedRedis.err != nil {
		t.Fatalf("no Redis server: %v\nset %s, or install redis-server or valkey-server", sharedRedis.err, RedisVariable)
	}
	return sharedRedis.url
}

// StopRedis stops the private server of [Redis], if one was started.
func StopRedis() {
	if sharedRedis.server != nil {
		sharedRedis.server.remove()
	}
}

// RedisPrefix returns the URL of a server and a prefix that no key has, and
// deletes all keys with that prefix when the test ends.
func RedisPrefix(t testing.TB) (url, prefix string) {
	t.Helper()
	url = Redis(t)
	prefix = "flexiq_test_" + strings.ToLower(rand.Text()[:12]) + ":"
	t.Cleanup(func() {
		if err := deletePrefix(url, prefix); err != nil {
			t.Errorf("delete the keys with the prefix %s: %v", prefix, err)
		}
	})
	return url, prefix
}

func deletePrefix(url, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), redisStart)
	defer cancel()
	return withRedis(url, func(c *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := c.Scan(ctx, cursor, prefix+"*", 1000).Result()
			if err != nil {
				return err
			}
			if len(keys) > 0 {
				if err := c.Unlink(ctx, keys...).Err(); err != nil {
					return err
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

// withRedis does something with a client of its own.
func withRedis(url string, do func(*redis.Client) error) error {
	o, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	o.Protocol, o.DisableIdentity, o.MaxRetries, o.DialerRetries = 2, true, -1, 1
	c := redis.NewClient(o)
	return errors.Join(do(c), c.Close())
}

func pingRedis(ctx context.Context, url string) error {
	o, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	// The client library writes to the standard error output when nobody answers.
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", o.Addr)
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	return withRedis(url, func(c *redis.Client) error { return c.Ping(ctx).Err() })
}

func findRedis() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), redisStart)
	defer cancel()
	if url := os.Getenv(RedisVariable); url != "" {
		return url, pingRedis(ctx, url)
	}
	const usual = "redis://127.0.0.1:6379"
	if pingRedis(ctx, usual) == nil {
		return usual, nil
	}
	s, err := newRedis(rand.Text())
	if err != nil {
		return "", err
	}
	sharedRedis.server = s
	return s.URL(), nil
}

// RedisServer is a private server, for tests that stop it.
type RedisServer struct {
	program, dir, password string
	port                   int
	settings               []string
	process                *process
}

// StartRedis starts a server of the test's own, which ends with the test.
// Settings are as on the program's command line, without the dashes: a name and
// a value, in turns.
func StartRedis(t testing.TB, settings ...string) *RedisServer {
	t.Helper()
	return startRedis(t, rand.Text(), settings...)
}

func startRedis(t testing.TB, password string, settings ...string) *RedisServer {
	t.Helper()
	s, err := newRedis(password, settings...)
	if err != nil {
		t.Fatalf("no private Redis server: %v", err)
	}
	t.Cleanup(s.remove)
	return s
}

// redisProgram finds the installed server program.
func redisProgram() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("nothing answers on 127.0.0.1:6379 and no server program is installed")
}

func newRedis(password string, settings ...string) (_ *RedisServer, err error) {
	s := &RedisServer{password: password, settings: settings}
	if s.program, err = redisProgram(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "flexiq-redis-"); err != nil {
		return nil, err
	}
	if err = s.Start(); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// Address is the host and port of the server.
func (s *RedisServer) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is where the server answers.
func (s *RedisServer) URL() string {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", s.password), Host: s.Address()}
	return u.String()
}

// Start starts the server, on the port and with the files that it had before, if any.
func (s *RedisServer) Start() error {
	if s.port == 0 {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.port = port
	}
	args := []string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--requirepass", s.password, "--save", "",
		"--daemonize", "no", "--loglevel", "warning"}
	for i, v := range s.settings {
		if i%2 == 0 {
			v = "--" + v
		}
		args = append(args, v)
	}
	var err error
	if s.process, err = startProcess(exec.Command(s.program, args...)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisStart)
	defer cancel()
	for {
		err := pingRedis(ctx, s.URL())
		if err == nil {
			return nil
		}
		if err := s.process.gone(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w\n%s", err, s.process.output)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Crash kills the server at once.
func (s *RedisServer) Crash() error { return s.process.stop(syscall.SIGKILL, redisStop) }

// Freeze stops the server's process where it is, and Thaw lets it go on.
func (s *RedisServer) Freeze() error { return s.process.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw ends what Freeze began.
func (s *RedisServer) Thaw() error { return s.process.cmd.Process.Signal(syscall.SIGCONT) }

// remove stops the server and deletes its folder.
func (s *RedisServer) remove() {
	if err := s.Crash(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
	}
}

// slots is how many slots a cluster has.
const slots = 16384

// StartRedisCluster starts a cluster of n private servers without replicas,
// which ends with the test, and returns them when every slot is served. The
// slots are theirs in equal parts, in order.
func StartRedisCluster(t testing.TB, n int) []*RedisServer {
	t.Helper()
	servers, password := make([]*RedisServer, n), rand.Text()
	for i := range servers {
		port, err := freePort() // by default it lies 10 000 above the other, which may be no port
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = startRedis(t, password, "cluster-enabled", "yes", "cluster-port", strconv.Itoa(port), "cluster-node-timeout", "5000")
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisStart)
	defer cancel()
	for i, s := range servers {
		err := withRedis(s.URL(), func(c *redis.Client) error {
			if err := c.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
				return err
			}
			for _, other := range servers[:i] {
				meet := []any{"cluster", "meet", "127.0.0.1", other.port, other.settings[3]}
				if err := c.Do(ctx, meet...).Err(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("cluster: %v", err)
		}
	}
	for _, s := range servers {
		Eventually(t, "the cluster is complete", func() bool {
			var info string
			err := withRedis(s.URL(), func(c *redis.Client) (err error) {
				info, err = c.ClusterInfo(ctx).Result()
				return err
			})
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", n))
		})
	}
	return servers
}
