package resptest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/redistest"
)

// watcher is a test that may fail without failing this one.
type watcher struct {
	testing.TB
	mu       sync.Mutex
	said     []string
	cleanups []func()
}

func (w *watcher) Error(args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprint(args...))
}
func (w *watcher) Errorf(format string, args ...any) { w.Error(fmt.Sprintf(format, args...)) }
func (w *watcher) Failed() bool                      { return len(w.said) > 0 }
func (w *watcher) Cleanup(f func())                  { w.cleanups = append(w.cleanups, f) }

// end does what the end of a test does, and returns what it failed with.
func (w *watcher) end() string {
	for _, f := range slices.Backward(w.cleanups) {
		f()
	}
	return strings.Join(w.said, "\n")
}

func dial(t *testing.T, addr string) *redis.Conn {
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	conn := client.Conn()
	t.Cleanup(func() { _, _ = conn.Close(), client.Close() })
	return conn
}

func TestReplayGivesTheRecordedAnswersAndNoOthers(t *testing.T) {
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "a.resp")
	ctx := context.Background()
	talk := func(c *redis.Conn) []any {
		var got []any
		for _, args := range [][]any{
			{"SET", "a", "x \r\n\"\xff"},
			{"GET", "a"},
			{"GET", "nothing"},
			{"HGET", "a", "f"}, // an error
			{"EVAL", "return {1, {'two', {}}, false}", "0"},
		} {
			v, err := c.Do(ctx, args...).Result()
			got = append(got, v, fmt.Sprint(err))
		}
		return got
	}

	recording := &watcher{TB: t}
	want := talk(dial(t, recordTo(recording, file, server.Addr)))
	if said := recording.end(); said != "" {
		t.Fatal(said)
	}
	if n, err := server.Client().DBSize(ctx).Result(); n != 0 || err != nil {
		t.Errorf("%d keys, %v: recording leaves the server empty", n, err)
	}

	same := &watcher{TB: t}
	if got := talk(dial(t, replay(same, file))); !slices.EqualFunc(got, want, func(a, b any) bool { return fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b) }) {
		t.Errorf("replayed %q\nrecorded %q", got, want)
	}
	if said := same.end(); said != "" {
		t.Error(said)
	}

	other := &watcher{TB: t}
	if err := dial(t, replay(other, file)).Set(ctx, "b", "x", 0).Err(); err == nil {
		t.Error("a request that was not recorded got an answer")
	}
	if said := other.end(); !strings.Contains(said, "request 2:\ngot  set b x\nwant SET a") {
		t.Errorf("said %q", said)
	}

	shorter := &watcher{TB: t}
	replay(shorter, file)
	if said := shorter.end(); !strings.Contains(said, "6 requests were never made") {
		t.Errorf("said %q", said)
	}
}

func TestAServerThatHoldsKeysIsLeftAlone(t *testing.T) {
	server := redistest.Start(t)
	ctx, client := context.Background(), server.Client()
	if err := client.Set(ctx, "precious", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	refused := &refusing{watcher: watcher{TB: t}}
	func() {
		defer func() { _ = recover() }()
		own(refused, server.Addr)
	}()
	if !strings.Contains(refused.fatal, "that tests may empty") {
		t.Errorf("said %q", refused.fatal)
	}
	refused.end()
	if n, _ := client.DBSize(ctx).Result(); n != 1 {
		t.Errorf("%d keys are left", n)
	}
}

// refusing leaves a function that calls Fatalf by a panic.
type refusing struct {
	watcher
	fatal string
}

func (r *refusing) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	panic(r.fatal)
}

func FuzzElementsAreTheWire(f *testing.F) {
	f.Add([]byte("*2\r\n$2\r\n\r\n\r\n:1\r\n"))
	f.Add([]byte("%1\r\n+a\r\n*-1\r\n"))
	f.Add([]byte("$-1\r\n"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		elements, err := readElements(bufio.NewReader(bytes.NewReader(wire)))
		if err != nil {
			return
		}
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		for _, e := range elements {
			if strings.ContainsAny(e, "\n") {
				t.Fatalf("element %q is more than one line", e)
			}
			if err := writeElement(w, e); err != nil {
				t.Fatal(err)
			}
		}
		w.Flush()
		again, err := readElements(bufio.NewReader(&b))
		if err != nil || !slices.Equal(again, elements) {
			t.Fatalf("%q became %q, %v", elements, again, err)
		}
	})
}
