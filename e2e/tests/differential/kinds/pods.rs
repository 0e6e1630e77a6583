//! Pods.

use serde_json::json;

use super::{Kind, Row, kind};

/// Fields of the spec and of the status.
const ROWS: &[Row] = &[
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i"}],[{"name":"c","image":"j"}],[{"name":"c","image":"i:v1","resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/data"}]},{"name":"d","image":"i:latest","imagePullPolicy":"Never"}],[{"name":"c","image":"i","env":[{"name":"A","value":"b"}],"ports":[{"containerPort":80}]}]]"#,
        r#"[[],null,[{"name":"","image":"i"}],[{"name":"c"}],[{"name":"c","image":" i"}],[{"name":"c","image":"i"},{"name":"c","image":"i"}],[{"name":"Not Valid","image":"i"}],[{"name":"c","image":"i","imagePullPolicy":"Often"}],[{"name":"c","image":"i","volumeMounts":[{"name":"missing","mountPath":"/x"}]}],[{"name":"c","image":"i","volumeDevices":[{"name":"v","devicePath":"/x"}]}],[{"name":"c","image":"i","ports":[{"containerPort":0}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"protocol":"X"}]}],[{"name":"c","image":"i","env":[{"name":""}]}],[{"name":"c","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"storage":"2"}}}],[{"name":"c","image":7}],{}]"#,
    ),
    // lifecycle
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","lifecycle":{"postStart":{"exec":{"command":["a"]}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"httpGet":{"port":80}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"tcpSocket":{"port":"http"}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":1}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":0}}}}]]"#,
        r#"[[{"name":"c","image":"i","lifecycle":{"postStart":{}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"exec":{}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":0}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":"a--b"}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":80,"scheme":"FTP","httpHeaders":[{"name":"a b","value":"c"}]}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"tcpSocket":{"port":70000}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":-1}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":9999}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"exec":{"command":["a"]},"sleep":{"seconds":1}}}}]]"#,
    ),
    // env
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1m"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a","key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"a","key":"k","optional":true}}}]}],[{"name":"c","image":"i","env":[{"name":"1 a","value":"b"}]}]]"#,
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.x"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"status.phase"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName['a']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a b']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v2","fieldPath":"metadata.name"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.x"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"requests.memory","divisor":"3"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"Not_Valid","key":"a b"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"},"secretKeyRef":{"name":"a","key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}},"value":"x"}]}],[{"name":"c","image":"i","env":[{"name":"a=b","value":"c"}]}]]"#,
    ),
    // fileKeyRef
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":"k"}}}]}]]"#,
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"missing","path":"../p","key":""}}}]}]]"#,
    ),
    // ports
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","ports":[{"name":"http","containerPort":80,"hostPort":8080}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"hostPort":1},{"containerPort":81,"hostPort":1,"protocol":"UDP"}]}]]"#,
        r#"[[{"name":"c","image":"i","ports":[{"name":"Http","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"a--b","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"123","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"-longer-than-fifteen","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"a","containerPort":80},{"name":"a","containerPort":81}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"hostPort":1},{"containerPort":81,"hostPort":1}]}]]"#,
    ),
    // subPath
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a/b"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPathExpr":"$(A)"}]}]]"#,
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"/a"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a/../b"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPathExpr":"/../a"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a","subPathExpr":"b"}]}]]"#,
    ),
    // mountPropagation
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"HostToContainer"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","readOnly":true,"recursiveReadOnly":"IfPossible"}]}],[{"name":"c","image":"i","securityContext":{"privileged":true},"volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Bidirectional"}]}]]"#,
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Bidirectional"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Both"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","recursiveReadOnly":"Enabled"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","recursiveReadOnly":"Maybe"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","readOnly":true,"recursiveReadOnly":"Enabled","mountPropagation":"HostToContainer"}]}]]"#,
    ),
    // probes
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]}}}],[{"name":"c","image":"i","readinessProbe":{"httpGet":{"port":"http"},"successThreshold":2}}],[{"name":"c","image":"i","startupProbe":{"tcpSocket":{"port":80},"periodSeconds":5}}],[{"name":"c","image":"i","livenessProbe":{"grpc":{"port":80},"terminationGracePeriodSeconds":5}}]]"#,
        r#"[[{"name":"c","image":"i","livenessProbe":{}}],[{"name":"c","image":"i","livenessProbe":{"exec":{}}}],[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]},"grpc":{"port":0}}}],[{"name":"c","image":"i","readinessProbe":{"httpGet":{"port":0,"scheme":"FTP"},"failureThreshold":-1}}],[{"name":"c","image":"i","startupProbe":{"tcpSocket":{"port":"a--b"},"successThreshold":2}}],[{"name":"c","image":"i","readinessProbe":{"grpc":{"port":70000},"terminationGracePeriodSeconds":0}}],[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]},"initialDelaySeconds":-1,"timeoutSeconds":-1,"periodSeconds":-1,"successThreshold":-1}}]]"#,
    ),
    // securityContext
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"runAsUser":1,"runAsGroup":1,"allowPrivilegeEscalation":false}}],[{"name":"c","image":"i","securityContext":{"capabilities":{"add":["NET_ADMIN"],"drop":["ALL"]}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"runAsUser":-1,"runAsGroup":2147483648}}],[{"name":"c","image":"i","securityContext":{"allowPrivilegeEscalation":false,"privileged":true}}],[{"name":"c","image":"i","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"add":["CAP_SYS_ADMIN"]}}}],[{"name":"c","image":"i","securityContext":{"procMount":"Other"}}],[{"name":"c","image":"i","securityContext":{"seccompProfile":{"type":"Localhost"}}}],[{"name":"c","image":"i","securityContext":{"seccompProfile":{"type":"Other","localhostProfile":"x"}}}]]"#,
    ),
    // resources
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","resources":{"limits":{"cpu":"1","hugepages-2Mi":"4Mi"}}}],[{"name":"c","image":"i","resources":{"limits":{"example.com/a":"2"}}}]]"#,
        r#"[[{"name":"c","image":"i","resources":{"limits":{"disk":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"example.com/a":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"example.com/a":"1"},"limits":{"example.com/a":"2"}}}],[{"name":"c","image":"i","resources":{"limits":{"hugepages-2Mi":"1Mi"}}}],[{"name":"c","image":"i","resources":{"limits":{"requests.example.com/a":"1"}}}],[{"name":"c","image":"i","resources":{"claims":[{"name":"r"},{"name":"r"},{"name":""},{"name":"s","request":"a"},{"name":"s","request":"a"},{"name":"s"}]}}]]"#,
    ),
    // appArmorProfile
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Unconfined"}}}],[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":""}}}],[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Unconfined","localhostProfile":""}}}]]"#,
    ),
    // windowsOptions
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"windowsOptions":{"runAsUserName":"u"}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"windowsOptions":{"hostProcess":true}}}],[{"name":"c","image":"i","securityContext":{"windowsOptions":{"hostProcess":true}}},{"name":"d","image":"i"}],[{"name":"c","image":"i","securityContext":{"windowsOptions":{"runAsUserName":""}}}]]"#,
    ),
    // stopSignal and restartPolicy
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","lifecycle":{"stopSignal":"SIGUSR1"}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}},"stopSignal":"SIGNONE"}}],[{"name":"c","image":"i","restartPolicy":"Never","restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1,0]}},{"action":"RestartAllContainers","exitCodes":{"operator":"NotIn","values":[2]}}]}]]"#,
        r#"[[{"name":"c","image":"i","restartPolicy":"Sometimes"}],[{"name":"c","image":"i","restartPolicy":""}],[{"name":"c","image":"i","restartPolicyRules":[{"action":"Stop","exitCodes":{"operator":"Is"}}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{"action":"Restart"},{}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}],[{"name":"c","image":"i","restartPolicyRules":{}}]]"#,
    ),
    // resizePolicy
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"}]}],[{"name":"c","image":"i","resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"},{"resourceName":"cpu","restartPolicy":"NotRequired"}]}]]"#,
        r#"[[{"name":"c","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"},{"resourceName":"cpu","restartPolicy":"RestartContainer"}]}],[{"name":"c","image":"i","resizePolicy":[{"resourceName":"disk","restartPolicy":"Never"}]}],[{"name":"c","image":"i","resizePolicy":[{}]}]]"#,
    ),
    // initContainers
    (
        "/spec/initContainers",
        r#"[[{"name":"x","image":"i","restartPolicy":"OnFailure","restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1]}}],"resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"}]}]]"#,
        r#"[[{"name":"x","image":"i","restartPolicy":"Sometimes"}],[{"name":"x","image":"i","restartPolicyRules":[{"action":"Stop"}]}],[{"name":"x","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"RestartContainer"}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{"action":"Stop"}],"lifecycle":{"stopSignal":"SIGUSR1"}}]]"#,
    ),
    (
        "/spec/initContainers",
        r#"[[{"name":"x","image":"i"}],[{"name":"x","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}}},"restartPolicy":"Always"}]]"#,
        r#"[[{"name":"c","image":"i"}],[{"name":"x","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}}}}],[{"name":"x","image":"i","readinessProbe":{"tcpSocket":{"port":80}}}],[{"name":"x","image":"i"},{"name":"y","image":"i","ports":[{"containerPort":1,"hostPort":1},{"containerPort":2,"hostPort":1}]}]]"#,
    ),
    (
        "/spec/volumes",
        r#"[[{"name":"v","persistentVolumeClaim":{"claimName":"a"}}],[{"name":"v","emptyDir":{}}],[{"name":"v","csi":{"driver":"csi.example.com"}},{"name":"w","secret":{"secretName":"a"}}],[{"name":"v"}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}}}],[{"name":"v","hostPath":{"path":"/x"}}],[]]"#,
        r#"[[{"name":""}],[{"name":"v","persistentVolumeClaim":{"claimName":""}}],[{"name":"v","emptyDir":{}},{"name":"v","emptyDir":{}}],[{"name":"v","emptyDir":{},"hostPath":{"path":"/x"}}],[{"name":"v","csi":{"driver":""}}],[{"name":"Not Valid","emptyDir":{}}],[{"name":"v","ephemeral":{}}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":[]}}}}],[{"name":"v","secret":{}}],[{"name":"v","hostPath":{"path":"/x","type":"Thing"}}],[{"name":"v","emptyDir":{"sizeLimit":"-1"}}],"v"]"#,
    ),
    // image
    (
        "/spec/volumes",
        r#"[[{"name":"v","image":{"reference":"i"}}],[{"name":"v","image":{"reference":"i:v1","pullPolicy":"Never"}}]]"#,
        r#"[[{"name":"v","image":{}}],[{"name":"v","image":{"reference":"i","pullPolicy":"Often"}}],[{"name":"v","emptyDir":{},"image":{"reference":"i"}}]]"#,
    ),
    ("/spec/nodeName", r#"["a","b"]"#, r#"["Not_Valid",7]"#),
    (
        "/spec/nodeSelector",
        r#"[{"zone":"z1"},{}]"#,
        r#"[{"zone":"not valid"},{"-":"x"},[]]"#,
    ),
    (
        "/spec/restartPolicy",
        r#"["Always","Never","OnFailure"]"#,
        r#"["Sometimes",""]"#,
    ),
    ("/spec/terminationGracePeriodSeconds", "[0,30,5]", r#"[-1,"5"]"#),
    ("/spec/activeDeadlineSeconds", "[10,20]", r#"[0,-1,"x"]"#),
    (
        "/spec/dnsPolicy",
        r#"["Default","ClusterFirst"]"#,
        r#"["Other","None"]"#,
    ),
    ("/spec/hostNetwork", "[true,false]", r#"["x"]"#),
    (
        "/spec/serviceAccountName",
        r#"["default",""]"#,
        r#"["missing","Not_Valid",7]"#,
    ),
    ("/spec/automountServiceAccountToken", "[true,false]", r#"["x"]"#),
    (
        "/spec/tolerations",
        r#"[[{"key":"a","operator":"Exists"}],[{"operator":"Exists"}],[{"key":"a","value":"b","effect":"NoExecute","tolerationSeconds":5}]]"#,
        r#"[[{"key":"","operator":"Equal"}],[{"key":"a","operator":"Is"}],[{"key":"a","operator":"Exists","value":"x"}],[{"key":"a","effect":"Never"}],[{"key":"a","tolerationSeconds":5}],[7]]"#,
    ),
    (
        "/spec/priorityClassName",
        r#"["",null]"#,
        r#"["missing","system-node-critical"]"#,
    ),
    ("/spec/priority", "[0,null]", "[7]"),
    (
        "/spec/preemptionPolicy",
        r#"["PreemptLowerPriority",null]"#,
        r#"["Never","Sometimes","",7]"#,
    ),
    ("/spec/schedulerName", r#"["other","default-scheduler"]"#, "[7]"),
    (
        "/spec/schedulingGates",
        r#"[[{"name":"example.com/gate"}],[]]"#,
        r#"[[{"name":""}],[{"name":"a b"}],[{"name":"g"},{"name":"g"}]]"#,
    ),
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]}]}}},null]"#,
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}}]"#,
    ),
    (
        "/spec/securityContext",
        r#"[{"fsGroup":1000},{"runAsUser":1000,"runAsNonRoot":true},{"supplementalGroups":[1,2],"sysctls":[{"name":"kernel.shm_rmid_forced","value":"1"}]},{"sysctls":[{"name":"kernel.shm_rmid_forced","value":""}]},{}]"#,
        r#"[{"fsGroup":-1},{"runAsUser":"x"},{"fsGroupChangePolicy":"Other"},{"supplementalGroups":[1,-1]},{"sysctls":[{"name":"A","value":"1"},{"name":"","value":"1"}]},{"sysctls":[{"name":"kernel.sem","value":"1"},{"name":"kernel.sem","value":"1"}]},{"supplementalGroupsPolicy":"Other"},{"seccompProfile":{"type":""}}]"#,
    ),
    // affinity between pods and preferences
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"zone","operator":"Exists"}]}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}}}]}},{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,"podAffinityTerm":{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}}}}]}}]"#,
        r#"[{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":0,"preference":{"matchExpressions":[{"key":"zone","operator":"Is"}]}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"","labelSelector":{"matchLabels":{"app":"x"}}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","namespaces":["Not_Valid"],"labelSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}]}},{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":101,"podAffinityTerm":{"topologyKey":"a b","labelSelector":{"matchLabels":{"app":"x"}}}}]}}]"#,
    ),
    (
        "/spec/topologySpreadConstraints",
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}},"minDomains":2},{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"x"}}}],[]]"#,
        r#"[[{"maxSkew":0,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"","whenUnsatisfiable":"Never","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}},{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"x"}},"minDomains":0}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}},"nodeTaintsPolicy":"Other"}],7]"#,
    ),
    // matchLabelKeys
    (
        "/spec/topologySpreadConstraints",
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"a":"x"}},"matchLabelKeys":["app","tier"]}]]"#,
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","matchLabelKeys":["app"]}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{},"matchLabelKeys":["a b"]}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchExpressions":[{"key":"app","operator":"Exists"},{"key":"app","operator":"Exists"}]},"matchLabelKeys":["tier","app"]}]]"#,
    ),
    (
        "/spec/affinity",
        r#"[{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{},"matchLabelKeys":["app"],"mismatchLabelKeys":["tier"]}]},"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":{"topologyKey":"zone","labelSelector":{"matchExpressions":[{"key":"app","operator":"Exists"}]},"mismatchLabelKeys":["app"]}}]}}]"#,
        r#"[{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","matchLabelKeys":["app"],"mismatchLabelKeys":["app"]}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}},"matchLabelKeys":["app","app"],"mismatchLabelKeys":["-","app"]}]}}]"#,
    ),
    (
        "/spec/dnsConfig",
        r#"[{"nameservers":["10.0.0.1"],"searches":["a_b.c"],"options":[{"name":"ndots","value":"2"}]},null]"#,
        r#"[{"nameservers":["x"]},{"nameservers":["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.04"]},{"searches":["A"]},{"options":[{}]}]"#,
    ),
    (
        "/spec/hostAliases",
        r#"[[{"ip":"10.0.0.1","hostnames":["a"]}],[]]"#,
        r#"[[{"ip":"x"}],[{"ip":"10.0.0.1","hostnames":["Not_Valid"]}],[{"ip":"::ffff:10.0.0.1"}]]"#,
    ),
    (
        "/spec/readinessGates",
        r#"[[]]"#,
        r#"[[{"conditionType":"a b"}],[{}]]"#,
    ),
    ("/spec/hostPID", r#"[true,false]"#, r#"["x"]"#),
    ("/spec/hostIPC", "[false]", r#"[true,"x"]"#),
    ("/spec/hostUsers", "[true,null]", r#"[false,"x"]"#),
    (
        "/spec/os",
        r#"[{"name":"linux"},null]"#,
        r#"[{"name":"windows"},{"name":""},{"name":"plan9"},{},"linux"]"#,
    ),
    (
        "/spec/securityContext",
        r#"[{"seLinuxChangePolicy":"Recursive"}]"#,
        r#"[{"seLinuxChangePolicy":"MountOption"},{"seLinuxChangePolicy":""}]"#,
    ),
    // appArmorProfile
    (
        "/spec/securityContext",
        r#"[{"appArmorProfile":{"type":"RuntimeDefault"}},{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}]"#,
        r#"[{"appArmorProfile":{}},{"appArmorProfile":{"type":"Other"}},{"appArmorProfile":{"type":"Localhost"}},{"appArmorProfile":{"type":"Localhost","localhostProfile":" p"}},{"appArmorProfile":{"type":"Unconfined","localhostProfile":"p"}}]"#,
    ),
    (
        "/metadata/annotations",
        r#"[{"container.apparmor.security.beta.kubernetes.io/c":"runtime/default"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/p"}]"#,
        r#"[{"container.apparmor.security.beta.kubernetes.io/missing":"unconfined"},{"container.apparmor.security.beta.kubernetes.io/c":"other"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/ p"}]"#,
    ),
    // windowsOptions
    (
        "/spec/securityContext",
        r#"[{"windowsOptions":{"gmsaCredentialSpecName":"a.b","gmsaCredentialSpec":"x","runAsUserName":"d\\u"}},{"windowsOptions":{"hostProcess":false}}]"#,
        r#"[{"windowsOptions":{"hostProcess":true}},{"windowsOptions":{"gmsaCredentialSpecName":"Not_Valid","gmsaCredentialSpec":""}},{"windowsOptions":{"runAsUserName":""}},{"windowsOptions":{"runAsUserName":"a\\b\\c"}},{"windowsOptions":{"runAsUserName":"\\"}},{"windowsOptions":{"runAsUserName":"a-.*b\\. ."}},{"windowsOptions":{"runAsUserName":"a\tb"}},{"windowsOptions":{"runAsUserName":".net\\u@v"}}]"#,
    ),
    ("/spec/shareProcessNamespace", r#"[false,null]"#, r#"[true,"x"]"#),
    ("/spec/hostname", r#"["h"]"#, r#"["Not_Valid"]"#),
    ("/spec/setHostnameAsFQDN", "[false,null]", r#"[true,"x"]"#),
    (
        "/spec/hostnameOverride",
        r#"["h.example.com",null]"#,
        r#"["Not_Valid","","xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]"#,
    ),
    ("/spec/runtimeClassName", "[null]", r#"["missing","Not_Valid",7]"#),
    (
        "/spec/overhead",
        "[null]",
        r#"[{"cpu":"1"},{"cpu":"x"},{"cpu":"-1"},{"disk":"1"},{"hugepages-2Mi":"2Mi"}]"#,
    ),
    (
        "/spec/resources",
        r#"[{"requests":{"cpu":"1","memory":"2Gi"}},{"limits":{"cpu":"2"}},{"limits":{"cpu":"2","memory":"4Gi"}},{},null]"#,
        r#"[{"requests":{"storage":"1"}},{"requests":{"disk":"1"}},{"claims":[{"name":"r"}]},{"requests":{"cpu":"2"},"limits":{"cpu":"1"}},{"limits":{"memory":"1"}},{"requests":{"cpu":"50m"}},{"limits":{"hugepages-2Mi":"2Mi"}},7]"#,
    ),
    (
        "/status/phase",
        r#"["Running","Succeeded","Failed","Pending"]"#,
        r#"[7,[]]"#,
    ),
    (
        "/status/conditions",
        r#"[[{"type":"Ready","status":"True"}],[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"m"},{"type":"Ready","status":"False","lastTransitionTime":"2020-01-01T00:00:00Z"}],[]]"#,
        r#"[[{"type":7}],{}]"#,
    ),
    ("/status/podIP", r#"["10.0.0.1",""]"#, r#"["x",7]"#),
    (
        "/status/podIPs",
        r#"[[{"ip":"10.0.0.1"}],[]]"#,
        r#"[[{"ip":"x"}],[{"ip":"10.0.0.1"},{"ip":"10.0.0.1"}]]"#,
    ),
    ("/status/hostIP", r#"["10.0.0.9",""]"#, r#"["x",7]"#),
    ("/status/message", r#"["text"]"#, "[7]"),
    ("/status/reason", r#"["Evicted"]"#, "[{}]"),
    (
        "/status/startTime",
        r#"["2020-01-01T00:00:00Z",null]"#,
        r#"["now"]"#,
    ),
    (
        "/status/containerStatuses",
        r#"[[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"x","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[{"name":"c","ready":false,"restartCount":2,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"x","user":{"linux":{"uid":0,"gid":0}}}],[]]"#,
        r#"[[{"name":7}],{}]"#,
    ),
    // envFrom
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","envFrom":[{"prefix":"A","secretRef":{"name":"a"}},{"configMapRef":{"name":"b","optional":true}}]}]]"#,
        r#"[[{"name":"c","image":"i","envFrom":[{}]}],[{"name":"c","image":"i","envFrom":[{"prefix":"a=b","secretRef":{"name":""}}]}],[{"name":"c","image":"i","envFrom":[{"secretRef":{"name":"Not_Valid"},"configMapRef":{"name":"b"}}]}]]"#,
    ),
    // warnings
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","env":[{"name":"A","value":"a"},{"name":"A","value":"$(A):b"},{"name":"A","value":"b"},{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],[{"name":"c","image":"i","ports":[{"containerPort":80},{"containerPort":80},{"containerPort":80,"hostPort":1}]}],[{"name":"c","image":"i","ports":[{"name":"a","containerPort":80,"hostIP":"10.0.0.1"},{"containerPort":80,"protocol":"UDP"}]}],[{"name":"c","image":"i","ports":[{"name":"a","containerPort":80,"hostPort":1}]},{"name":"d","image":"i","ports":[{"name":"a","containerPort":80,"hostPort":1,"hostIP":"10.0.0.1"}]}],[{"name":"c","image":"i","resources":{"requests":{"memory":"1500m"},"limits":{"ephemeral-storage":"100m"}}}]]"#,
        r#"[[{"name":"c","image":"i","ports":[{"containerPort":80,"hostPort":1,"hostIP":"10.0.0.1"},{"containerPort":80,"hostPort":1,"hostIP":"10.0.0.1"}]}]]"#,
    ),
    // ephemeralContainers
    (
        "/spec/ephemeralContainers",
        r#"[[],null]"#,
        r#"[[{"name":"d","image":"i"}],[{"name":"c","image":" i","targetContainerName":"x","ports":[{"containerPort":1}]}],7]"#,
    ),
    // other volume sources
    (
        "/spec/volumes",
        r#"[[{"name":"v","nfs":{"server":"s","path":"/p"}}],[{"name":"v","iscsi":{"targetPortal":"10.0.0.1:3260","iqn":"iqn.2001-04.com.example:a","lun":1}}],[{"name":"v","iscsi":{"targetPortal":"p","iqn":"eui.0123456789abcdef","initiatorName":"naa.0123456789abcdef0123456789abcdef"}}],[{"name":"v","rbd":{"monitors":["m"],"image":"i"}}],[{"name":"v","cephfs":{"monitors":["m"]}}],[{"name":"v","fc":{"targetWWNs":["w"],"lun":1}}],[{"name":"v","fc":{"wwids":["w"]}}],[{"name":"v","flocker":{"datasetName":"a"}}],[{"name":"v","quobyte":{"registry":"a:1,[::1]:2","volume":"v"}}],[{"name":"v","flexVolume":{"driver":"d","options":{"a":"b"}}}],[{"name":"v","azureDisk":{"diskName":"a","diskURI":"https://x"}}],[{"name":"v","azureDisk":{"diskName":"a","diskURI":"/subscriptions/x","kind":"Managed"}}],[{"name":"v","vsphereVolume":{"volumePath":"p"}}],[{"name":"v","photonPersistentDisk":{"pdID":"p"}}],[{"name":"v","portworxVolume":{"volumeID":"p"}}],[{"name":"v","scaleIO":{"gateway":"g","system":"s","volumeName":"v","secretRef":{"name":"a","namespace":"default"}}}],[{"name":"v","storageos":{"volumeName":"a","volumeNamespace":"b"}}],[{"name":"v","glusterfs":{"endpoints":"e","path":"p"}}],[{"name":"v","gcePersistentDisk":{"pdName":"a","partition":1}}],[{"name":"v","awsElasticBlockStore":{"volumeID":"a"}}],[{"name":"v","cinder":{"volumeID":"a","secretRef":{"name":"s","namespace":"n"}}}],[{"name":"v","azureFile":{"secretName":"a","shareName":"b"}}],[{"name":"v","gitRepo":{"repository":"r","directory":"d"}}]]"#,
        r#"[[{"name":"v","nfs":{"server":"","path":"p"}}],[{"name":"v","iscsi":{"targetPortal":"","iqn":"x","lun":256}}],[{"name":"v","iscsi":{"targetPortal":"pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp","iqn":"iqn.x","initiatorName":"naa.1","chapAuthSession":true}}],[{"name":"v","iscsi":{"targetPortal":"p","iqn":"","initiatorName":"x","secretRef":{}}}],[{"name":"v","rbd":{}}],[{"name":"v","cephfs":{"monitors":[]}}],[{"name":"v","fc":{}}],[{"name":"v","fc":{"targetWWNs":["w"],"wwids":["w"]}}],[{"name":"v","fc":{"targetWWNs":["w"],"lun":-1}}],[{"name":"v","flocker":{}}],[{"name":"v","flocker":{"datasetName":"a/b","datasetUUID":"u"}}],[{"name":"v","quobyte":{"registry":"a","volume":""}}],[{"name":"v","quobyte":{}}],[{"name":"v","quobyte":{"registry":"a:1","tenant":"ttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt"}}],[{"name":"v","quobyte":{"registry":"::1:2,[a]b:1","volume":"v"}}],[{"name":"v","flexVolume":{"driver":"","options":{"x.kubernetes.io/a":"b"}}}],[{"name":"v","azureDisk":{"diskName":"","diskURI":"x","cachingMode":"All","kind":"Other"}}],[{"name":"v","azureDisk":{"diskName":"a","diskURI":"https://x","kind":"Managed"}}],[{"name":"v","vsphereVolume":{}}],[{"name":"v","photonPersistentDisk":{}}],[{"name":"v","portworxVolume":{}}],[{"name":"v","scaleIO":{"gateway":"","system":"","secretRef":null}}],[{"name":"v","storageos":{"volumeName":"A","volumeNamespace":"B","secretRef":{}}}],[{"name":"v","storageos":{}}],[{"name":"v","glusterfs":{}}],[{"name":"v","gcePersistentDisk":{"pdName":"","partition":256}}],[{"name":"v","awsElasticBlockStore":{"volumeID":"","partition":-1}}],[{"name":"v","cinder":{"volumeID":"","secretRef":{}}}],[{"name":"v","azureFile":{"secretName":"","shareName":""}}],[{"name":"v","gitRepo":{"repository":"","directory":"/a/../b"}}],[{"name":"v","csi":{"driver":"d","nodePublishSecretRef":{"name":"Not_Valid"}}}],[{"name":"v","csi":{"driver":"d","nodePublishSecretRef":{}}}],[{"name":"v","emptyDir":{},"cephfs":{},"downwardAPI":{}}],[{"name":"v","flexVolume":{"driver":"d"},"nfs":{}}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"metadata":{"name":"a","uid":"u","annotations":{"a b":"c"}},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1500m"}}}}}},{"name":"w","persistentVolumeClaim":{"claimName":"a-v"}}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"metadata":{"creationTimestamp":"2020-01-01T00:00:00Z","finalizers":["a"],"generateName":"g","labels":{"-":"x"}},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1"}},"dataSourceRef":{"kind":"PersistentVolumeClaim","name":"a","namespace":"Not_Valid"}}}}}]]"#,
    ),
    // files
    (
        "/spec/volumes",
        r#"[[{"name":"v","secret":{"secretName":"s","defaultMode":256,"items":[{"key":"k","path":"a/b/"},{"key":"l","path":"a","mode":511},{"key":"m","path":"ab"}]}}],[{"name":"v","configMap":{"name":"c","items":[{"key":"k","path":"a"},{"key":"k","path":"a"}]}}],[{"name":"v","downwardAPI":{"items":[{"path":"a","fieldRef":{"fieldPath":"metadata.labels"}},{"path":"a/b","resourceFieldRef":{"containerName":"c","resource":"limits.cpu"}}]}}],[{"name":"v","projected":{"sources":[{"secret":{"name":"s","items":[{"key":"k","path":"a"}]}},{"serviceAccountToken":{"path":"a/t"}},{"downwardAPI":{"items":[{"path":"l","fieldRef":{"fieldPath":"metadata.labels['x']"}}]}},{}]}}],[{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"name":"x","path":"p"}},{"podCertificate":{"signerName":"a.b/c","keyType":"ED25519","keyPath":"k"}}]}}]]"#,
        r#"[[{"name":"v","secret":{"defaultMode":512,"items":[{"key":"","path":""},{"key":"k","path":"..a"},{"key":"k","path":"..","mode":-1}]}}],[{"name":"v","configMap":{"items":[{"key":"k","path":"/a/../b"}]}}],[{"name":"v","downwardAPI":{"defaultMode":-1,"items":[{"path":"a"},{"path":"","fieldRef":{"fieldPath":"spec.host"}},{"path":"b","fieldRef":{"fieldPath":"x"},"resourceFieldRef":{"resource":"limits.cpu"}},{"path":"c","mode":1000,"resourceFieldRef":{"resource":"limits.memory","divisor":"3"}}]}}],[{"name":"v","projected":{"defaultMode":600,"sources":[{"secret":{"name":"","items":[{"key":"k","path":"a"}]},"configMap":{"name":"c","items":[{"key":"k","path":"a"}]}}]}}],[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"","expirationSeconds":1}},{"serviceAccountToken":{"path":"../a","expirationSeconds":5000000000}},{"downwardAPI":{"items":[{"path":"a","fieldRef":{"fieldPath":"metadata.name"}},{"path":"a","fieldRef":{"fieldPath":"status.phase"}}]}}]}}],[{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"path":7}}]}}]]"#,
    ),
    // annotations
    (
        "/metadata/annotations",
        r#"[{"controller.kubernetes.io/pod-deletion-cost":"-10"},{"scheduler.alpha.kubernetes.io/tolerations":"[{\"Key\":\"a\",\"operator\":\"Exists\"}]"},{"seccomp.security.alpha.kubernetes.io/pod":"docker/default"},{"container.seccomp.security.alpha.kubernetes.io/c":"localhost/p"},{"scheduler.alpha.kubernetes.io/critical-pod":""},{"security.alpha.kubernetes.io/sysctls":"a=b"}]"#,
        r#"[{"controller.kubernetes.io/pod-deletion-cost":"+1"},{"controller.kubernetes.io/pod-deletion-cost":""},{"controller.kubernetes.io/pod-deletion-cost":"3000000000"},{"scheduler.alpha.kubernetes.io/tolerations":"["},{"scheduler.alpha.kubernetes.io/tolerations":"{}"},{"scheduler.alpha.kubernetes.io/tolerations":"[7]"},{"scheduler.alpha.kubernetes.io/tolerations":"[{\"key\":\"a b\",\"effect\":\"Never\"}]"},{"seccomp.security.alpha.kubernetes.io/pod":"other"},{"container.seccomp.security.alpha.kubernetes.io/c":"localhost//a/../b"},{"kubernetes.io/config.mirror":"x"}]"#,
    ),
    (
        "/spec/securityContext",
        r#"[{"seccompProfile":{"type":"RuntimeDefault"}},{"seccompProfile":{"type":"Localhost","localhostProfile":"p"}}]"#,
        r#"[{"seccompProfile":{"type":"Localhost","localhostProfile":"/p"}}]"#,
    ),
    (
        "/spec/nodeSelector",
        r#"[{"beta.kubernetes.io/arch":"a"},{"node-role.kubernetes.io/master":""}]"#,
        r#"[{"failure-domain.beta.kubernetes.io/zone":"not valid"}]"#,
    ),
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"beta.kubernetes.io/os","operator":"In","values":["a"]}]}]},"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"scheduler.alpha.kubernetes.io/preferAvoidPods","operator":"In","values":["-a"]}]}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone"}]},"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":{"topologyKey":"zone"}}]}}]"#,
        r#"[7]"#,
    ),
    (
        "/spec/topologySpreadConstraints",
        r#"[[{"maxSkew":1,"topologyKey":"beta.kubernetes.io/instance-type","whenUnsatisfiable":"DoNotSchedule"}]]"#,
        r#"[{}]"#,
    ),
    (
        "/spec/hostAliases",
        r#"[[{"ip":"10.0.0.1"},{"ip":"10.0.0.1"}],[{"ip":"FD00::1"}]]"#,
        r#"[[{"ip":"10.0.0.01"}]]"#,
    ),
    (
        "/spec/imagePullSecrets",
        r#"[[{"name":"a"},{"name":"a"}],[{}],[]]"#,
        r#"[[7]]"#,
    ),
    ("/spec/overhead", r#"[null]"#, r#"[{"memory":"1500m"}]"#),
    (
        "/status/containerStatuses",
        r#"[[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":0}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"waiting":{"reason":"r"}}}],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"volumeMounts":[{"name":"v","mountPath":"/v","volumeStatus":{"image":{"imageRef":"r"}}}]}]]"#,
        r#"[[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"user":{"linux":{"uid":-1,"gid":3000000000,"supplementalGroups":[1,-1]}}}],[7],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"claim:r/s","resources":[{"resourceID":"a","health":"Ill"}]}]}],[{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"cpu","resources":[{"resourceID":"a","health":"Healthy","message":""},{"resourceID":"a","health":"Unknown","message":"m"}]}]}]]"#,
    ),
    (
        "/status/initContainerStatuses",
        r#"[[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":0}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"waiting":{"reason":"r"}}}],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"volumeMounts":[{"name":"v","mountPath":"/v","volumeStatus":{"image":{"imageRef":"r"}}}]}]]"#,
        r#"[[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"user":{"linux":{"uid":-1,"gid":3000000000,"supplementalGroups":[1,-1]}}}],[7],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"claim:r/s","resources":[{"resourceID":"a","health":"Ill"}]}]}],[{"name":"x","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"cpu","resources":[{"resourceID":"a","health":"Healthy","message":""},{"resourceID":"a","health":"Unknown","message":"m"}]}]}]]"#,
    ),
    (
        "/status/ephemeralContainerStatuses",
        r#"[[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":0}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}},{"name":"other","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"waiting":{"reason":"r"}}}],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"volumeMounts":[{"name":"v","mountPath":"/v","volumeStatus":{"image":{"imageRef":"r"}}}]}]]"#,
        r#"[[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"user":{"linux":{"uid":-1,"gid":3000000000,"supplementalGroups":[1,-1]}}}],[7],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"claim:r/s","resources":[{"resourceID":"a","health":"Ill"}]}]}],[{"name":"d","ready":false,"restartCount":0,"image":"i","imageID":"","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}},"allocatedResourcesStatus":[{"name":"cpu","resources":[{"resourceID":"a","health":"Healthy","message":""},{"resourceID":"a","health":"Unknown","message":"m"}]}]}]]"#,
    ),
    (
        "/status/conditions",
        r#"[[{"type":"Ready","status":"True","observedGeneration":1}],[{"type":"Ready","status":"False","observedGeneration":2},{"type":"Ready","status":"True"},{"type":"example.com/a","status":"True"}]]"#,
        r#"[[{"type":"Ready","status":"True","observedGeneration":-1}],[{"type":"a b","status":"True"}]]"#,
    ),
    ("/status/observedGeneration", r#"[1,2,null]"#, r#"[-1,"1"]"#),
    (
        "/status/hostIPs",
        r#"[[{"ip":"10.0.0.9"}],[{"ip":"10.0.0.9"},{"ip":"FD00::1"}],[]]"#,
        r#"[[{"ip":"x"}],[{"ip":"10.0.0.9"},{"ip":"10.0.0.09"}],[{"ip":"10.0.0.9"},{"ip":"::ffff:10.0.0.1"},{"ip":"fd00::1"}]]"#,
    ),
    (
        "/status/podIPs",
        r#"[[{"ip":"FD00::1"},{"ip":"10.0.0.1"}]]"#,
        r#"[[{"ip":"10.0.0.01"}],[{"ip":"::ffff:10.0.0.1"}]]"#,
    ),
    (
        "/status/resourceClaimStatuses",
        r#"[[],null]"#,
        r#"[[{"name":"r"},{"name":"r","resourceClaimName":"Not_Valid"}]]"#,
    ),
    (
        "/status/extendedResourceClaimStatus",
        r#"[null]"#,
        r#"[{},{"requestMappings":[{"containerName":"c","resourceName":"a","requestName":"r"},{"containerName":"c","resourceName":"a","requestName":"r"}],"resourceClaimName":"Not_Valid"},{"requestMappings":[{"containerName":"y","resourceName":"cpu","requestName":"R"}],"resourceClaimName":"r"}]"#,
    ),
    (
        "/status/nodeAllocatableResourceClaimStatuses",
        r#"[[{"resourceClaimName":"r","containers":["c"],"resources":{"cpu":"1"}}]]"#,
        r#"[7]"#,
    ),
    ("/status/nominatedNodeName", r#"["a",""]"#, r#"["Not_Valid",7]"#),
];

pub(super) fn kinds() -> Vec<Kind> {
    let base = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    vec![Kind {
        namespaced: true,
        selectable: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ..kind("", "Pod", "pods", base, ROWS)
    }]
}
