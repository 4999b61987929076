package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/config"
)

// NewLogger returns a logger as configured; log has been validated.
func NewLogger(log config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(log.Level)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// quietRedis sends what go-redis would write to standard error to the logger:
// its news (a retry, a lost connection) is ours to judge, so it is for debugging.
type quietRedis struct{ log *slog.Logger }

func (q quietRedis) Printf(ctx context.Context, format string, v ...any) {
	if q.log.Enabled(ctx, slog.LevelDebug) {
		q.log.DebugContext(ctx, fmt.Sprintf(format, v...), "library", "go-redis")
	}
}

// LogRedis sends the Redis client's own messages to log, for the whole process.
func LogRedis(log *slog.Logger) { redis.SetLogger(quietRedis{log}) }
