package testkit

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MonitorRedis calls hear, from one goroutine, with every command that the server
// says it carries out, those inside scripts included, in their order, until the
// test ends. Whoever calls sync has everything heard that was done before.
func MonitorRedis(t testing.TB, url string, hear func(line string)) (sync func()) {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", o.Addr, redisStart)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReaderSize(conn, 1<<20)
	login := [][]string{{"monitor"}}
	if o.Password != "" {
		user := o.Username
		if user == "" {
			user = "default"
		}
		login = [][]string{{"auth", user, o.Password}, {"monitor"}}
	}
	for _, words := range login {
		if err := askRedis(conn, in, words); err != nil {
			t.Fatalf("%s: %v", words[0], err)
		}
	}
	marks, ended := make(chan string), make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if _, mark, ok := strings.Cut(line, `"flexiq monitor `); ok {
				select {
				case marks <- strings.TrimRight(mark, "\"\r\n"):
				case <-ctx.Done():
					return
				}
				continue
			}
			hear(strings.TrimSuffix(line, "\r\n"))
		}
	}()
	t.Cleanup(func() {
		stop()
		conn.Close()
		<-ended
	})
	return func() {
		t.Helper()
		mark := rand.Text()
		ctx, cancel := context.WithTimeout(context.Background(), redisStart)
		defer cancel()
		if err := withRedis(url, func(c *redis.Client) error { return c.Echo(ctx, "flexiq monitor "+mark).Err() }); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case heard := <-marks:
				if heard == mark {
					return
				}
			case <-ended:
				t.Fatal("the monitored server hung up")
			case <-ctx.Done():
				t.Fatal("the monitor does not keep up")
			}
		}
	}
}

// askRedis sends a command and wants OK.
func askRedis(conn net.Conn, in *bufio.Reader, words []string) error {
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	if err := conn.SetDeadline(time.Now().Add(redisStart)); err != nil {
		return err
	}
	defer conn.SetDeadline(time.Time{})
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	line, err := in.ReadString('\n')
	if err == nil && line != "+OK\r\n" {
		err = fmt.Errorf("the server says %q", line)
	}
	return err
}

// RedisMemory is how many bytes the keys with a prefix take.
func RedisMemory(t testing.TB, url, prefix string) (bytes int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), redisStart)
	defer cancel()
	err := withRedis(url, func(c *redis.Client) error {
		keys := c.Scan(ctx, 0, prefix+"*", 1000).Iterator()
		for keys.Next(ctx) {
			n, err := c.MemoryUsage(ctx, keys.Val(), 0).Result()
			if err != nil {
				return err
			}
			bytes += n
		}
		return keys.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
