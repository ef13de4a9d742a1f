// An S3-compatible server in memory, with one bucket: prints its port, and ends with its input.
//
// Only requests that name the key "writer" are answered; their signatures are not judged.
package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	backend := s3mem.New()
	if err := backend.CreateBucket("events"); err != nil {
		log.Fatal(err)
	}
	objects := gofakes3.New(backend).Server()
	server := http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if !strings.Contains(request.Header.Get("Authorization"), "Credential=writer/") {
			answer.WriteHeader(http.StatusForbidden)
			fmt.Fprint(answer, "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
			return
		}
		if isReplaced(backend, request) {
			answer.WriteHeader(http.StatusPreconditionFailed)
			fmt.Fprint(answer, "<Error><Code>PreconditionFailed</Code><Message>Replaced</Message></Error>")
			return
		}
		objects.ServeHTTP(answer, request)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		log.Fatal(http.Serve(listener, server))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// gofakes3 knows If-Match of PUT alone.
func isReplaced(backend gofakes3.Backend, request *http.Request) bool {
	wanted := request.Header.Get("If-Match")
	bucket, key, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	if wanted == "" || request.Method != http.MethodGet {
		return false
	}
	object, err := backend.HeadObject(bucket, key)
	return err == nil && fmt.Sprintf("%q", hex.EncodeToString(object.Hash)) != wanted
}
