package resptest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// server answers the connections of one test with answer, one request at a time.
type server struct {
	t      testing.TB
	l      net.Listener
	answer func(request []string) (reply []string, err error)

	mu    sync.Mutex // held while a request is answered; guards what follows
	conns map[net.Conn]bool
	shut  bool
	wg    sync.WaitGroup
}

// serve listens until the test ends.
func serve(t testing.TB, answer func([]string) ([]string, error)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, l: l, answer: answer, conns: make(map[net.Conn]bool)}
	s.wg.Go(s.accept)
	return s
}

// close ends all connections and waits until nothing is being answered.
func (s *server) close() {
	_ = s.l.Close()
	s.mu.Lock()
	s.shut = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		if s.shut {
			_ = c.Close()
		} else {
			s.conns[c] = true
			s.wg.Go(func() { s.talk(c) })
		}
		s.mu.Unlock()
	}
}

// talk answers one connection's requests until the client leaves.
func (s *server) talk(c net.Conn) {
	defer c.Close()
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		request, err := readRequest(r)
		if err != nil {
			return
		}
		s.mu.Lock()
		var reply []string
		if !s.shut {
			if reply, err = s.answer(request); err != nil {
				s.t.Error(err)
				reply = []string{"-ERR the transcript says something else: see the test's output"}
			}
		}
		s.mu.Unlock()
		for _, e := range reply {
			if err := writeElement(w, e); err != nil {
				return
			}
		}
		if err := w.Flush(); err != nil {
			return
		}
	}
}

// replay answers from a transcript.
func replay(t testing.TB, file string) string {
	t.Helper()
	all, err := load(file)
	if os.IsNotExist(err) {
		t.Fatalf("%s is not there: record it with -record and %s", file, Env)
	} else if err != nil {
		t.Fatal(err)
	}
	next := 0
	s := serve(t, func(request []string) ([]string, error) {
		got := printRequest(request)
		if next == len(all) {
			return nil, fmt.Errorf("%s ends after %d requests, but there comes\n%s", file, len(all), got)
		}
		want := all[next]
		if got != want.request {
			return nil, fmt.Errorf("%s, request %d:\n%s", file, next+1, difference(got, want.request))
		}
		next++
		return want.reply, nil
	})
	t.Cleanup(func() {
		s.close()
		if next < len(all) && !t.Failed() {
			t.Errorf("%s: %d requests were never made, the first of them\n%s", file, len(all)-next, all[next].request)
		}
	})
	return s.l.Addr().String()
}

// recordTo answers from the real server and writes down what it said.
func recordTo(t testing.TB, file, addr string) string {
	t.Helper()
	own(t, addr)
	comment := versions(t, addr)
	upstream, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r, w := bufio.NewReader(upstream), bufio.NewWriter(upstream)
	var all []exchange
	s := serve(t, func(request []string) ([]string, error) {
		if err := writeRequest(w, request); err != nil {
			return nil, err
		}
		reply, err := readElements(r)
		if err != nil {
			return nil, err
		}
		all = append(all, exchange{printRequest(request), reply})
		return reply, nil
	})
	t.Cleanup(func() {
		s.close()
		_ = upstream.Close()
		if t.Failed() {
			return // a transcript of a failure is of no use
		}
		if err := save(file, comment, all); err != nil {
			t.Error(err)
		}
	})
	return s.l.Addr().String()
}

// versions says what was recorded.
func versions(t testing.TB, addr string) string {
	t.Helper()
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	said := "recorded from redis"
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			said += " " + v
		}
	}
	modules, err := client.Do(ctx, "MODULE", "LIST").Slice()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		if f, ok := m.([]any); ok && len(f) >= 4 {
			said += fmt.Sprintf(", %v %v", f[1], f[3])
		}
	}
	return said
}
