package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
)

// The fonts are Inter and JetBrains Mono, under the SIL Open Font License that
// stands beside them.
//
//go:embed assets
var assetFiles embed.FS

// asset is a file as it is served.
type asset struct {
	content     []byte
	contentType string
	version     string // of the content: a URL with it may be kept for ever
}

var assets = func() map[string]asset {
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic(err) // they are part of the binary
	}
	all := make(map[string]asset, len(entries))
	for _, e := range entries {
		content, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		contentType := mime.TypeByExtension(path.Ext(e.Name()))
		switch path.Ext(e.Name()) { // not left to the machine's list of types
		case ".woff2":
			contentType = "font/woff2"
		case ".LICENSE":
			contentType = "text/plain; charset=utf-8"
		}
		all[e.Name()] = asset{content, contentType, hex.EncodeToString(sum[:6])}
	}
	return all
}()

// assetURL returns the address of an asset, which changes with its content.
func assetURL(name string) string {
	return "/assets/" + name + "?v=" + assets[name].version
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	etag := `"` + a.version + `"`
	cache := "public, max-age=3600"
	if r.URL.Query().Get("v") == a.version {
		cache = "public, max-age=31536000, immutable"
	}
	w.Header().Set("Cache-Control", cache)
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	_, _ = w.Write(a.content) // the client has gone if this fails
}
