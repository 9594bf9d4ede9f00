package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a private Redis server.
type redisServer struct {
	*process
	addr   string
	client *redis.Client // for readings
}

// startRedis starts a server as it comes, or one that has every answer on disk.
func (e *env) startRedis(ctx context.Context, durable bool) (*redisServer, error) {
	var program string
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		return nil, errors.New("neither redis-server nor valkey-server is installed")
	}
	dir, err := os.MkdirTemp(e.dir, "redis-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--daemonize", "no", "--loglevel", "warning"}
	if durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	r := &redisServer{addr: "127.0.0.1:" + port}
	if r.process, err = startProcess(exec.Command(program, args...)); err != nil {
		return nil, err
	}
	r.client = redis.NewClient(&redis.Options{Addr: r.addr})
	e.later(func() error {
		return errors.Join(r.client.Close(), r.stop(syscall.SIGKILL), os.RemoveAll(dir))
	})
	if err := r.await(ctx, "redis", 20*time.Second, func() error { return r.client.Ping(ctx).Err() }); err != nil {
		return nil, err
	}
	version, err := r.client.InfoMap(ctx, "server").Result()
	if err == nil && version["Server"]["redis_version"] == "" {
		err = fmt.Errorf("the server does not tell its version")
	}
	return r, err
}

func (r *redisServer) url(db int) string { return fmt.Sprintf("redis://%s/%d", r.addr, db) }

func (r *redisServer) pid() int { return r.cmd.Process.Pid }

// quiesce has nothing to do: the server keeps nothing back.
func (r *redisServer) quiesce(context.Context) error { return nil }
