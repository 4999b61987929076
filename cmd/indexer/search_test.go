package main

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/token"
)

// Only the index knows how much of a quota is used: an answer is an answer of it.
func TestQueriesAreAnsweredByTheSearchIndexWhereTheServerHasOne(t *testing.T) {
	redisAddr, address := resptest.Live(t), proctest.FreeAddr(t)
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer client.Close()
	for id, hash := range map[token.ID][]any{
		"alice": {"token", "alice", "ops", 7, "percent", 90, "owner", "acme"},
		"bob":   {"token", "bob", "ops", 8, "percent", 10, "owner", "acme"},
	} {
		if err := client.HSet(t.Context(), metadata.Key("api", id), hash...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, nil, getenv(map[string]string{
			"TALLYGATE_REDIS_URL": "redis://" + redisAddr, "TALLYGATE_INDEXER_LISTEN": address, "TALLYGATE_INDEXER_DEBUG_LISTEN": "127.0.0.1:0",
			"TALLYGATE_HISTORY_URL": "sqlite:" + filepath.Join(t.TempDir(), "history.db"),
		}), io.Discard, io.Discard)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, func() bool {
		r, err := http.Get("http://" + address + "/v1/tokens?q=owner:acme+percent%3E%3D80")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return err == nil && r.StatusCode == http.StatusOK && strings.Contains(string(body), `"alice"`) && !strings.Contains(string(body), `"bob"`)
	})
}
