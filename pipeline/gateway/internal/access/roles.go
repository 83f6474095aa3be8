package access

import (
	"net/http"
	"regexp"
	"strings"
)

// Paths are compared as callers sent them, before escapes are decoded: an unusual spelling needs the role Admin,
// or Observe if the request only reads.
var (
	healthPath  = regexp.MustCompile(`^/(?:v2/)?health/(?:live|ready)$|^/healthz?$|^` + modelPath + `/ready$`)
	inferPath   = regexp.MustCompile(`^` + modelPath + `/(?:infer|generate|generate_stream)$|^/api/[^/]+$|^/v1/(?:chat/completions|completions|embeddings|responses|messages|audio/transcriptions|images/generations)$`)
	knowPath    = regexp.MustCompile(`^/v2/?$|^` + modelPath + `(?:/config)?$|^/v1/models(?:/.+)?$|^/api/[^/]+/ws$|^/openapi\.json$|^/docs(?:[./_-][A-Za-z0-9._-]*)?$|^/api$`)
	keptPath    = regexp.MustCompile(`^/v1/responses/[^/]+$`)
	observePath = regexp.MustCompile(`^/v2/repository/index$`)
)

const modelPath = `/v2/models/[^/]+(?:/versions/[^/]+)?`

// ofMethods has the roles of gRPC's methods; of others: Admin.
var ofMethods = map[string]Role{
	"/grpc.health.v1.Health/Check": Open, "/grpc.health.v1.Health/Watch": Open, "/grpc.health.v1.Health/List": Open,
	v2Service + "ServerLive": Open, v2Service + "ServerReady": Open, v2Service + "ModelReady": Open,
	v2Service + "ModelInfer": Infer, v2Service + "ModelStreamInfer": Infer,
	v2Service + "ServerMetadata": Infer, v2Service + "ModelMetadata": Infer, v2Service + "ModelConfig": Infer,
	v2Service + "ModelStatistics": Observe, v2Service + "RepositoryIndex": Observe,
	v2Service + "SystemSharedMemoryStatus": Observe, v2Service + "CudaSharedMemoryStatus": Observe,
	pipelineService + "inference": Infer, pipelineService + "inference_stream": Infer,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      Infer,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Infer,
}

const (
	v2Service       = "/inference.GRPCInferenceService/"
	pipelineService = "/baidu.paddle_serving.pipeline_serving.PipelineService/"
)

// OfMethod returns what a caller of a method of gRPC needs.
func OfMethod(method string) Role {
	if role, isKnown := ofMethods[method]; isKnown {
		return role
	}
	return Admin
}

// OfRequest returns what the caller of an HTTP request needs. `isInference`: it is a POST to
// /<name>/<method>, which no
// path of another kind can be.
func OfRequest(method, target string, isInference bool) Role {
	path, _, _ := strings.Cut(target, "?")
	isAsking := method == http.MethodGet || method == http.MethodHead
	switch {
	case method == http.MethodOptions || isAsking && healthPath.MatchString(path):
		return Open
	case method == http.MethodPost && (isInference || inferPath.MatchString(path)):
		return Infer
	case (isAsking || method == http.MethodDelete) && keptPath.MatchString(path):
		return Infer
	case isAsking && knowPath.MatchString(path) && !strings.HasSuffix(path, "/stats"):
		return Infer
	case isAsking, method == http.MethodPost && observePath.MatchString(path):
		return Observe
	}
	return Admin
}
