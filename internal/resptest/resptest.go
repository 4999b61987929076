// Package resptest lets tests of Redis modules run without the modules.
//
//	live      TALLYGATE_TEST_SEARCH_ADDR names a server: the client under test talks to it
//	record    the same, and -record is given: what goes to and fro is written to testdata
//	replay    otherwise: the transcript answers in the server's place
//
// A transcript is a text of requests and replies in the order in which they were
// made, over all connections. Replaying is strict: a request that differs from
// the recorded one, comes in another order, or never comes fails the test. So a
// test that uses this package makes its requests one after the other, and depends
// on neither clock nor chance.
//
//	> FT.SEARCH tallygate "@owner:{acme}" LIMIT 0 1
//	*3
//	:2
//	"{api:a}:data"
//	*2
//	"ops"
//	"7"
//
// A line is one element of the wire's protocol: in quotes a bulk string, anything
// else as it stands there.
package resptest

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Env names the server with RediSearch and RedisTimeSeries that tests may empty.
const Env = "TALLYGATE_TEST_SEARCH_ADDR"

var record = flag.Bool("record", false, "write transcripts of what tests say to the server at "+Env)

// Live returns the address of the real server for this test alone, empty. Where
// there is none the test is skipped: it is one that no transcript can stand for.
func Live(t testing.TB) string {
	t.Helper()
	addr := os.Getenv(Env)
	if addr == "" {
		t.Skipf("%s names no server with RediSearch and RedisTimeSeries", Env)
	}
	if worker := flag.Lookup("test.fuzzworker"); worker == nil || worker.Value.String() != "true" {
		own(t, addr) // a fuzzing worker lives on what the process that started it owns
	}
	return addr
}

// Start returns the address at which a server answers this test: the real one,
// empty, or the transcript of it.
func Start(t testing.TB) string {
	t.Helper()
	addr := os.Getenv(Env)
	file := filepath.Join("testdata", strings.NewReplacer("/", "_", " ", "_").Replace(t.Name())+".resp")
	switch {
	case addr == "" && *record:
		t.Fatalf("-record needs %s, the address of a server", Env)
	case addr == "":
		return replay(t, file)
	case *record:
		return recordTo(t, file, addr)
	}
	return Live(t)
}

// lockKey is in database 1, where no index looks.
const lockKey = "tallygate:test"

// own waits until no other test uses the server, and empties it afterwards. It
// refuses a server that holds anything: that is somebody's.
func own(t testing.TB, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: addr, DB: 1})
	t.Cleanup(func() { _ = client.Close() })
	for {
		got, err := client.SetNX(ctx, lockKey, t.Name(), 10*time.Minute).Result()
		if err != nil {
			t.Fatalf("lock the server at %s: %v", addr, err)
		}
		if got {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("another test has kept the server at %s for two minutes", addr)
		case <-time.After(20 * time.Millisecond):
		}
	}
	space, err := client.Info(ctx, "keyspace").Result()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(space, "db0:") {
		_ = client.Del(ctx, lockKey).Err()
		t.Fatalf("the server at %s holds keys: name one in %s that tests may empty", addr, Env)
	}
	if err := client.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.FlushAll(context.Background()).Err(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("empty the server: %v", err)
		}
	})
}
